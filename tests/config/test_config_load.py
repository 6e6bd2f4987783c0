"""Reading a file: what is right is typed and resolved, what is wrong is named at its place, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.config.address import HostPort, UnixPath
from extproc.config.load import ConfigError, Problem, load
from extproc.config.schema import Config
from extproc.config.tree import MAX_FILE_BYTES

DATA = Path(__file__).parent / "data"
POOL = "pools: [{name: chat, models: [tiny], workers: ['10.0.0.1:1']}]\n"


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "gateway.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def problems(folder: Path, text: str | bytes) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text))
    return caught.value.problems


def test_a_small_file_gets_all_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path, POOL))
    (pool,) = config.pools
    assert (pool.name, pool.engine, pool.policy, pool.tokenizer) == ("chat", "vllm", "ttft", "worker")
    assert pool.models[0].name == "tiny"
    assert pool.workers[0].address == HostPort("10.0.0.1", 1)
    assert pool.workers[0].label == "10.0.0.1:1"
    assert config.limits.body_bytes == 32 << 20
    assert config.debug.clients == ()


def test_relative_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tokenizer.json").touch()
    (tmp_path / "chat.jinja").touch()
    file = write(
        tmp_path,
        "pools: [{name: chat, models: [tiny], workers: [], tokenizer: models, chat_template: chat.jinja}]\n",
    )
    config = load(file)
    assert config.pools[0].tokenizer == tmp_path / "models"
    assert config.pools[0].chat_template == tmp_path / "chat.jinja"
    assert config.envoy.directory == tmp_path / "run" / "envoy"
    assert config.listen.processor == (UnixPath(f"{tmp_path}/run/processor.sock"),)


def test_every_mistake_is_named_at_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        load(DATA / "many_mistakes.yaml")
    shown = str(caught.value).replace(f"{DATA}/", "")
    assert shown == (DATA / "many_mistakes.txt").read_text().rstrip("\n")


def test_the_schemas_own_words_never_show() -> None:
    with pytest.raises(ConfigError) as caught:
        load(DATA / "many_mistakes.yaml")
    for word in ("Input should", "validation", "pydantic", "Value error", "dictionary", "tuple", "Field required"):
        assert word not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("pools: [", (1, 9), "a value is missing here"),
        ("pools: [a\nlog: {}\n", (2, 4), "',' or a closing bracket is missing"),
        ("pools:\n\t- name: x\n", (2, 1), "indent with spaces"),
        ("pools:\n- name: x\n models: y\n", (3, 2), "indentation"),
        ("pools: a: b\n", (1, 9), "in quotes"),
        ("pools: 'x\n", (2, 1), "quote is missing"),
        ("pools: [@x]\n", (1, 9), "in quotes"),
        ("a: 1\n--- \nb: 1\n", (2, 1), "second document"),
        ("pools: !python/object:os.system x\n", (1, 8), "tags such as !python/object:os.system are not supported"),
        ("pools: !!binary x\n", (1, 8), "tags such as !!binary"),
        ("pools: *nothing\n", (1, 8), "*nothing names nothing"),
        ("a: &a {b: 1}\npools: {<<: *a}\n", (2, 9), "merge keys"),
        ("{[1]: 2}\n", (1, 2), "plain text"),
        ("- a\n", (1, 1), "must have keys such as `pools:`"),
        ("", (1, 1), "must have keys such as `pools:`"),
        ("just text\n", (1, 1), "must have keys such as `pools:`"),
        ("a: \x01\n", (1, 4), "control character"),
        (b"a: b\nc: \xff\n", (2, 1), "UTF-8"),
    ],
)
def test_what_is_no_yaml_of_ours_is_refused_with_its_place(
    tmp_path: Path, text: str | bytes, place: tuple[int, int], words: str
) -> None:
    (problem,) = problems(tmp_path, text)
    assert (problem.line, problem.column) == place
    assert words in problem.message


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.yaml: no such file"):
        load(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load(tmp_path)
    (problem,) = problems(tmp_path, b"#" * (MAX_FILE_BYTES + 1))
    assert "too large" in problem.message


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
    (problem,) = problems(tmp_path, "\n".join(lines))
    assert "too large" in problem.message


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000])
def test_bottomless_nesting_is_refused(tmp_path: Path, text: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert "levels deep" in problem.message


def test_aliases_within_reason_work(tmp_path: Path) -> None:
    text = (
        "pools:\n"
        "- {name: one, models: &models [{name: tiny, weight: 2}], workers: ['10.0.0.1:1']}\n"
        "- {name: two, models: *models, workers: ['10.0.0.2:1']}\n"
    )
    assert [pool.models[0].weight for pool in load(write(tmp_path, text)).pools] == [2, 2]


def test_words_that_older_yaml_took_for_booleans_are_text(tmp_path: Path) -> None:
    config = load(write(tmp_path, "pools: [{name: off, models: [yes, on], workers: []}]"))
    assert config.pools[0].name == "off"
    assert [model.name for model in config.pools[0].models] == ["yes", "on"]


CERTIFICATE = Path(__file__).parents[1] / "envoyconfig" / "data" / "localhost.pem"
TLS_FILES = f"certificate: '{CERTIFICATE}', key: '{CERTIFICATE}', ca: c.pem"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("limits: {body_bytes: true}", "limits.body_bytes: must be a number of bytes"),
        ("limits: {body_bytes: 0}", "must be at least 1 byte"),
        ("limits: {deadline_s: .inf}", "limits.deadline_s: must be a number, not '.inf'"),
        ("limits: {deadline_s: 1e999}", "limits.deadline_s: must be"),
        ("limits: {messages: 1.5}", "limits.messages: must be a whole number, not 1.5"),
        ("limits: {messages: 99999999}", "limits.messages: must be at most 1,000,000, not 99999999"),
        ("limits:", "limits: has no value: write keys such as `body_bytes:` after the ':', or leave the key out"),
        ("log: {level: null}", "log.level: must be debug, info, warning or error"),
        ("listen: {http: 8080}", "listen.http: must be an IP address with port"),
        ("listen: {http: ':8080'}", "write 0.0.0.0:8080 for all interfaces"),
        ("listen: {tls: {certificate: a.pem, key: b.pem}}", "there is no file"),
        (
            "listen: {processor: ['[::]:1'], processor_tls: {certificate: a.pem, key: b.pem, ca: c.pem}}",
            "there is no file",
        ),
        (f"listen: {{processor_tls: {{{TLS_FILES}}}}}", "unix:run/processor.sock is a Unix socket"),
        (f"listen: {{processor: ['[::]:1'], processor_tls: {{{TLS_FILES}, client_key: c}}}}", "write both or none"),
        (
            f"listen: {{processor: ['[::]:1'], processor_tls: {{{TLS_FILES}, client_ca: /etc/hosts}}}}",
            "nothing to show",
        ),
        ("listen: {processor: []}", "listen.processor: needs at least one item"),
        ("listen: {processor: ['unix:" + "x" * 120 + "']}", "bytes long and may have 107"),
        ("listen: {processor: ['unix:']}", "names no socket file"),
        (
            "listen: {http: '10.0.0.1:9000', admin: '[::]:9000'}",
            "listen.admin: [::]:9000 is already taken by listen.http",
        ),
        ("listen: {http: '0.0.0.0:9901'}", "already taken by listen.http"),
        ("listen: {processor: ['unix:a', 'unix:a']}", "already taken by listen.processor"),
        ("envoy: {acces_log: true}", "envoy.acces_log: unknown key (did you mean 'access_log'?)"),
        ("envoy: {frobnicate: true}", "unknown key; known here: directory, node_id"),
        ("health: {interval: 3}", "health.interval: unknown key (did you mean 'interval_s'?)"),
    ],
)
def test_mistakes_outside_pools_say_what_to_write(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, POOL + line))
    assert len(caught.value.problems) <= 2
    assert words in str(caught.value)
    assert {problem.line for problem in caught.value.problems} == {2}


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ("", "pools: has no value: write a list after the ':'"),
        ("[]", "pools: needs at least one item"),
        ("[{name: a}]", "pools[0].models: this key is missing: the models that its workers serve"),
        ("[{name: processor, models: [m], workers: []}]", "choose another"),
        ("[{name: a, models: [m], workers: []}, {name: a, models: [m], workers: []}]", "already named 'a'"),
        ("[{name: a, models: [{name: m, weight: 0}], workers: []}]", "nobody serves 'm', as all its weights are 0"),
        ("[{name: a, models: [{name: m, aliases: [n]}, n], workers: []}]", "is also the name of a model"),
        ("[{name: a, models: [{name: m, aliases: [m]}], workers: []}]", "is the model's own name"),
        (
            "[{name: a, models: [{name: m, aliases: [x]}, {name: n, aliases: [x]}], workers: []}]",
            "the alias 'x' already stands for the model 'm'",
        ),
        (
            "[{name: a, models: [m], workers: ['1.2.3.4:1']}, {name: b, models: [m], workers: ['1.2.3.4:1']}]",
            "pools[1].workers[0]: the worker 1.2.3.4:1 is already in the pool 'a'",
        ),
        (
            "[{name: a, models: [m], workers: ['[::1]:1', '[0:0::1]:1']}]",
            "pools[0].workers[1]: the worker [::1]:1 is twice in this pool",
        ),
        ("[{name: a, models: [m], workers: ['127.0.0.1:8080']}]", "is this gateway's own listen.http"),
        (
            "[{name: a, models: [m], workers: [{address: 'x:1', name: w}, {address: 'x:2', name: w}]}]",
            "another worker of this pool is already named 'w'",
        ),
        ("[{name: a, models: [' m'], workers: []}]", "printable characters without spaces at either end"),
        ("[{name: a, models: [1.5], workers: []}]", "must be keys such as `name:`, not 1.5"),
        ("[{name: a, models: [{name: 4}], workers: []}]", 'must be text: write it in quotes, as "4"'),
        ("[{name: a, engine: vlm, models: [m], workers: []}]", "vllm, mlx or openai, not 'vlm' (did you mean 'vllm'?)"),
        ("[{name: a, models: [m], workers: ['http://x:1']}]", "write `engine: openai`"),
        ("[{name: a, engine: openai, models: [m], workers: ['grpc://x:1']}]", "write `engine: vllm`"),
        ("[{name: a, engine: openai, models: [m], workers: ['https://x:1']}]", "in the pool's http.tls"),
        ("[{name: a, models: [m], workers: [], http: {host: x}}]", "pools[0].http: the engine vllm speaks gRPC"),
        ("[{name: a, models: [{name: m, engine_name: n}], workers: []}]", "leave `engine_name` out"),
        ("[{name: a, engine: openai, models: [m], workers: [{address: 'x:1', ranks: 2}]}]", "leave `ranks` out"),
        (
            "[{name: a, engine: openai, models: [m], workers: [], http: {path_prefix: /v1}}]",
            "begin with /v1 themselves",
        ),
        ("[{name: a, engine: openai, models: [m], workers: [], http: {path_prefix: a/}}]", "is no beginning of a path"),
        ("[{name: a, engine: openai, models: [m], workers: [], kv_events: zmq}]", "set `tokenizer` to a path"),
        ("[{name: a, engine: openai, models: [m], workers: [], http: {host: 'a b'}}]", "is no host"),
        ("[{name: a, models: [m], workers: [], tokenizer: .}]", "has no tokenizer (tokenizer.json, "),
        ("[{name: a, models: [m], workers: ['0.0.0.0:1']}]", "write the one at which the worker is reached"),
    ],
)
def test_mistakes_in_pools_say_what_to_write(tmp_path: Path, pools: str, words: str) -> None:
    assert words in "\n".join(
        [str(ConfigError(Path("f"), [problem])) for problem in problems(tmp_path, f"pools: {pools}\n")]
    )


def test_one_mistake_does_not_hide_another(tmp_path: Path) -> None:
    text = "pools:\n- {name: UPPER, models: [m], workers: ['1.2.3.4:1', '1.2.3.4:1']}\n"
    messages = [problem.message for problem in problems(tmp_path, text)]
    assert len(messages) == 2
    assert "is not a pool name" in messages[0]
    assert "twice in this pool" in messages[1]


def test_pools_may_share_a_model_and_its_aliases(tmp_path: Path) -> None:
    text = (
        "pools:\n"
        "- {name: a, models: [{name: m, aliases: [x], weight: 3}], workers: []}\n"
        "- {name: b, models: [{name: m, aliases: [x], weight: 0}], workers: []}\n"
    )
    assert len(load(write(tmp_path, text)).pools) == 2


def test_the_same_rules_hold_for_configurations_built_in_python() -> None:
    with pytest.raises(ValueError, match=r"pools\[0\]\.workers\[1\]\.address: the worker 1\.2\.3\.4:1 is twice"):
        Config(pools=[{"name": "a", "models": ["m"], "workers": ["1.2.3.4:1", "1.2.3.4:1"]}])


def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = load(write(tmp_path, POOL))
    with pytest.raises(ValueError, match="frozen"):
        config.pools[0].name = "other"  # type: ignore[misc]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
_KEYS = st.sampled_from(["name", "models", "workers", "tokenizer", "policy", "aliases", "weight", "address", "odd"])
_POOLS = st.lists(st.dictionaries(_KEYS, _VALUES | st.lists(st.dictionaries(_KEYS, _VALUES))), max_size=3)
_SECTIONS = st.sampled_from(["listen", "envoy", "pools", "limits", "health", "debug", "log"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
@given(data=st.dictionaries(_SECTIONS, _VALUES | _POOLS))
def test_any_data_is_a_configuration_or_a_list_of_mistakes(tmp_path: Path, data: object) -> None:
    file = write(tmp_path, yaml.safe_dump(data, allow_unicode=True))
    try:
        load(file)
        found = []
    except ConfigError as error:
        found = error.problems or [Problem("", 0, 0, "none")]
    assert all(problem.line >= 1 and problem.column >= 1 and problem.message for problem in found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(text=st.text(alphabet="ab:-[]{}&*!|>'\"#\n\t ,?%@0\x00é", max_size=60))
def test_any_text_is_a_configuration_or_a_list_of_mistakes(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        load(write(tmp_path, text))
