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

from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.ir import UNSET, ChatRequest, ErrorInfo, RequestError, Sampling

DATA = Path(__file__).parent / "data"
MINIMAL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
REFUSED = json.loads((DATA / "chat_refused.json").read_text())
ACCEPTED = json.loads((DATA / "chat_accepted.json").read_text())
DIALECT = OpenAIChat(BodyLimits(max_depth=8, max_messages=50, max_choices=8, max_option_bytes=10_000))
INTERNALS = re.compile(r"`|\$|Struct|msgspec|Error\b|\b(?:int|str|float|bool|dict|None|Raw)\b|recursion")


def body_of(case: dict[str, Any]) -> bytes:
    if "raw" in case:
        return case["raw"].encode()
    return json.dumps(case.get("body", {**MINIMAL, **case.get("set", {})})).encode()


def refusal(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(body)
    return caught.value


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(case: dict[str, Any]) -> None:
    info = refusal(body_of(case)).info
    assert (info.param, info.code) == (case["param"], case["code"])
    assert case.get("says", "") in info.message
    assert not INTERNALS.search(info.message)
    assert DIALECT.error(info).status == 400


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["name"])
def test_what_is_asked_for_arrives(case: dict[str, Any]) -> None:
    request = DIALECT.parse(body_of(case))
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
    assert DIALECT.parse(json.dumps(body).encode()).turns[0].name == "Ann"


def test_the_last_of_repeated_keys_counts() -> None:
    body = json.dumps(MINIMAL)[:-1] + ', "temperature": 1, "temperature": 0.5}'
    assert DIALECT.parse(body.encode()).sampling.temperature == 0.5


def test_a_conversation_over_the_limit_is_refused() -> None:
    info = refusal(json.dumps({**MINIMAL, "messages": MINIMAL["messages"] * 51}).encode()).info
    assert (info.param, info.code) == ("messages", "array_above_max_length")
    assert "50" in info.message


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
        parsed: ChatRequest | ErrorInfo = DIALECT.parse(body)
    except RequestError as error:
        parsed = error.info
    if isinstance(parsed, ErrorInfo):
        assert json.loads(DIALECT.error(parsed).body)["error"]["message"]
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
