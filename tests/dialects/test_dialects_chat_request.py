"""Chat Completions requests: what is carried, what is listed as lost, and how each mistake is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.dialects.openai_errors import render_error
from extproc.ir import UNSET, ChatRequest, ErrorInfo, RequestError, Sampling

DATA = Path(__file__).parent / "data"
MINIMAL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
REFUSED = json.loads((DATA / "chat_refused.json").read_text())
ACCEPTED = json.loads((DATA / "chat_accepted.json").read_text())
INBOUND = Inbound("POST", "/v1/chat/completions", "", {})
DIALECT = OpenAIChat(BodyLimits(max_depth=8, max_messages=50, max_choices=8, max_option_bytes=10_000))
INTERNALS = re.compile(r"`|\$|Struct|msgspec|Error\b|\b(?:int|str|float|bool|dict|None|Raw)\b|recursion")


def body_of(case: dict[str, Any]) -> bytes:
    if "raw" in case:
        return case["raw"].encode()
    return json.dumps(case.get("body", {**MINIMAL, **case.get("set", {})})).encode()


def refusal(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(INBOUND, body)
    return caught.value


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(case: dict[str, Any]) -> None:
    info = refusal(body_of(case)).info
    assert (info.param, info.code) == (case["param"], case["code"])
    assert case.get("says", "") in info.message
    assert not INTERNALS.search(info.message)
    assert render_error(info).status == 400


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_what_is_asked_for_arrives(case: dict[str, Any]) -> None:
    request = DIALECT.parse(INBOUND, body_of(case))
    if "sampling" in case:
        assert request.sampling == msgspec.convert(case["sampling"], SamplingShape, strict=False).sampling()
    for name, value in case.get("request", {}).items():
        assert getattr(request, name) == value
    if "turns" in case:
        assert [[turn.role, *(part.text for part in turn.parts)] for turn in request.turns] == case["turns"]
    assert [loss.field for loss in request.losses] == case.get("losses", [])
    assert all(loss.reason for loss in request.losses)


class SamplingShape(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Sampling as the case files write it, where only the fields that are set stand."""

    temperature: float | msgspec.UnsetType = UNSET
    top_p: float | msgspec.UnsetType = UNSET
    top_k: int | msgspec.UnsetType = UNSET
    min_p: float | msgspec.UnsetType = UNSET
    frequency_penalty: float | msgspec.UnsetType = UNSET
    presence_penalty: float | msgspec.UnsetType = UNSET
    repetition_penalty: float | msgspec.UnsetType = UNSET
    seed: int | msgspec.UnsetType = UNSET
    n: int | msgspec.UnsetType = UNSET
    max_tokens: int | msgspec.UnsetType = UNSET
    min_tokens: int | msgspec.UnsetType = UNSET
    stop: tuple[str, ...] | msgspec.UnsetType = UNSET
    stop_token_ids: tuple[int, ...] | msgspec.UnsetType = UNSET
    include_stop: bool | msgspec.UnsetType = UNSET
    ignore_eos: bool | msgspec.UnsetType = UNSET
    skip_special_tokens: bool | msgspec.UnsetType = UNSET
    logit_bias: dict[int, float] | msgspec.UnsetType = UNSET
    top_logprobs: int | msgspec.UnsetType = UNSET

    def sampling(self) -> Sampling:
        return Sampling(**{k: v for k, v in msgspec.structs.asdict(self).items() if v is not UNSET})


def test_a_name_is_kept() -> None:
    body = {**MINIMAL, "messages": [{"role": "user", "name": "Ann", "content": "hello"}]}
    assert DIALECT.parse(INBOUND, json.dumps(body).encode()).turns[0].name == "Ann"


def test_the_last_of_repeated_keys_counts() -> None:
    body = json.dumps(MINIMAL)[:-1] + ', "temperature": 1, "temperature": 0.5}'
    assert DIALECT.parse(INBOUND, body.encode()).sampling.temperature == 0.5


def test_a_conversation_over_the_limit_is_refused() -> None:
    info = refusal(json.dumps({**MINIMAL, "messages": MINIMAL["messages"] * 51}).encode()).info
    assert (info.param, info.code) == ("messages", "array_above_max_length")
    assert "50" in info.message


def test_parts_of_content_count_together() -> None:
    part = {"type": "text", "text": "a"}
    messages = [{"role": "user", "content": [part] * 25}, {"role": "user", "content": [part] * 25}]
    assert len(DIALECT.parse(INBOUND, json.dumps({**MINIMAL, "messages": messages}).encode()).turns) == 2
    messages.append({"role": "user", "content": [part]})
    info = refusal(json.dumps({**MINIMAL, "messages": messages}).encode()).info
    assert (info.param, info.code) == ("messages[2].content", "array_above_max_length")
    assert "50" in info.message


MANY = BodyLimits().max_strings + 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b'"",' * MANY,
        b'{"model": "m", ' + b'"n":1,' * MANY + b'"messages": []}',
        b'{"model": "m", "messages": [' + b'{"role":"user"},' * MANY + b"]}",
        b'{"model": "m", "messages": [{"role": "user", "content": [' + b'{"type":"text"},' * MANY + b"]}]}",
        b'{"model": "m", "metadata": {' + b'"a"b\\c":"",' * MANY + b"}}",
    ],
    ids=["values", "repeated keys", "messages", "parts", "escapes"],
)
def test_a_body_of_very_many_strings_is_refused_before_anything_is_built_from_it(body: bytes) -> None:
    info = refusal(body).info
    assert "too many strings" in info.message
    assert info.param is None


@pytest.mark.parametrize("text", ['"', '\\"', '{"role":"user"},', '[{"a":["b"]}]\n'])
def test_text_full_of_quotation_marks_and_braces_is_text(text: str) -> None:
    whole = text * MANY
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": whole}]}).encode()
    assert DIALECT.parse(INBOUND, body).turns[0].text == whole


def test_template_arguments_of_very_many_values_are_refused_but_not_text_with_braces() -> None:
    def asked(value: object) -> bytes:
        return json.dumps({**MINIMAL, "chat_template_kwargs": {"a": value}}).encode()

    dialect = OpenAIChat(BodyLimits(max_option_containers=100))
    for text in ("[{" * 200, '"[{\\' * 200, "\\"):
        assert dialect.parse(INBOUND, asked([text, text])).template_kwargs == {"a": [text, text]}
    assert len(dialect.parse(INBOUND, asked([[]] * 98)).template_kwargs["a"]) == 98
    for many in ([[]] * 99, [{}] * 99, ["\\", *[[]] * 99]):
        with pytest.raises(RequestError) as caught:
            dialect.parse(INBOUND, asked(many))
        assert caught.value.info.param == "chat_template_kwargs"
        assert "100 objects and arrays" in caught.value.info.message


@pytest.mark.parametrize("name", ["annotations", "reasoning_details"])
def test_fields_that_are_not_carried_are_not_read(name: str) -> None:
    field = b'"%b": {"huge": %b, "deep": %b1%b}' % (name.encode(), b"9" * 300, b"[" * 200, b"]" * 200)
    request = DIALECT.parse(INBOUND, b'{"model": "m", "messages": [{"role": "user", "content": "a", ' + field + b"}]}")
    assert [loss.field for loss in request.losses] == [f"messages[*].{name}"]


def test_equal_losses_are_listed_once() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": 1}
    message = {"role": "assistant", "content": [part, part], "reasoning_details": [1], "annotations": [1]}
    request = DIALECT.parse(INBOUND, json.dumps({**MINIMAL, "messages": [message] * 20, "store": True}).encode())
    assert [loss.field for loss in request.losses] == [
        "store",
        "messages[*].annotations",
        "messages[*].reasoning_details",
        "messages[*].content[*].prompt_cache_breakpoint",
        "messages[*].content[*].cache_control",
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "has no body"),
        (b" \n", "has no body"),
        (b'{"model": "m"', "ends in the middle of a value"),
        (b'{"model": "m" ' + b" " * 100, "ends in the middle of a value"),
        (rb'{"model": "\ud800', "ends in the middle of a value"),
        (rb'{"model": "\\ud800"', "ends in the middle of a value"),
        (rb'{"model": "\ud800"}', "half of a surrogate pair"),
        (rb'{"model": "\ud800\u0041"}', "half of a surrogate pair"),
        (rb'{"model": "\udc00"}', "half of a surrogate pair"),
        (rb'{"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}', "half of a surrogate pair"),
    ],
)
def test_a_body_that_is_not_whole_is_told_from_one_with_half_a_character(body: bytes, says: str) -> None:
    info = refusal(body).info
    assert says in info.message
    assert info.code == "invalid_json"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("metadata", '{"a": 1e999}', "out of range"),
        ("chat_template_kwargs", '{"a": 1e999}', "out of range"),
        ("chat_template_kwargs", '{"a": [{"b": %s}]}' % ("9" * 5000), "out of range"),
        ("logit_bias", '{"1": 1e999}', "out of range"),
        ("temperature", "1e999", "a number from 0 to 2"),
        ("seed", "9" * 5000, "an integer of 64 bits"),
    ],
)
def test_a_number_out_of_range_is_called_so(name: str, value: str, says: str) -> None:
    info = refusal(json.dumps(MINIMAL)[:-1].encode() + f', "{name}": {value}}}'.encode()).info
    assert info.param == name
    assert says in info.message


@pytest.mark.parametrize("name", ["logit_bias", "metadata", "chat_template_kwargs", "prompt_cache_key"])
def test_a_field_over_the_limit_is_refused_before_anything_is_built_from_it(name: str) -> None:
    info = refusal(json.dumps(MINIMAL).encode()[:-1] + b',"%b":[%b1]}' % (name.encode(), b"1," * 10_000)).info
    assert info.param == name
    assert "10000 bytes" in info.message


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("name", ["tools", "metadata", "messages", "chat_template_kwargs", "unknown"])
def test_bottomless_nesting_is_refused(opening: str, name: str) -> None:
    refusal(json.dumps(MINIMAL).encode()[:-1] + f',"{name}":{opening * 100_000}'.encode())


@pytest.mark.parametrize("place", [b'"content": "\xff"', b'"content": "a", "\xff": 1', b'"\xff": "user"'])
def test_what_is_no_utf8_is_refused(place: bytes) -> None:
    refusal(b'{"model": "m", "messages": [{"role": "user", ' + place + b"}]}")


def test_a_long_name_is_not_repeated_whole() -> None:
    assert len(refusal(json.dumps({**MINIMAL, "x" * 10_000: 1}).encode()).info.message) < 200


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3))
FIELD_NAMES = sorted({name for case in REFUSED + ACCEPTED for name in case.get("set", {})})
PART_NAMES = ["type", "text", "image_url", "refusal", "cache_control"]
MESSAGE_NAMES = ["role", "content", "name", "refusal", "tool_calls", "annotations"]
NEAR_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(MESSAGE_NAMES, VALUES),
            "role": st.sampled_from(["user", "assistant", "tool", "robot"]) | VALUES,
            "content": st.lists(
                st.fixed_dictionaries({}, optional=dict.fromkeys(PART_NAMES, VALUES | st.just("text"))), max_size=3
            )
            | VALUES,
        },
    ),
    max_size=3,
)


def parses_or_refuses(body: bytes) -> None:
    try:
        parsed: ChatRequest | ErrorInfo = DIALECT.parse(INBOUND, body)
    except RequestError as error:
        parsed = error.info
    if isinstance(parsed, ErrorInfo):
        assert json.loads(render_error(parsed).body)["error"]["message"]
    else:
        assert parsed.turns


@given(
    fields=st.dictionaries(st.sampled_from(FIELD_NAMES) | st.text(max_size=8), VALUES, max_size=5),
    messages=NEAR_MESSAGES | st.just(MINIMAL["messages"]),
)
def test_any_fields_are_parsed_or_refused(fields: dict[str, Any], messages: Any) -> None:
    parses_or_refuses(json.dumps({"model": "m", "messages": messages, **fields}).encode())


@given(st.binary(max_size=64) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    parses_or_refuses(body)


@given(st.data())
def test_any_damage_to_a_body_is_parsed_or_refused(data: st.DataObject) -> None:
    body = bytearray(body_of(data.draw(st.sampled_from(ACCEPTED))))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    parses_or_refuses(bytes(body))
