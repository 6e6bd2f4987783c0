"""Messages requests: what is carried, what is listed as lost, and how each mistake is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dialects_shapes import shape_of
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.anthropic import AnthropicCount, AnthropicMessages
from extproc.dialects.anthropic_errors import error_answer
from extproc.dialects.base import Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.ir import ErrorInfo, ErrorKind, RequestError

CASES = Path(__file__).parent / "cases" / "anthropic"
REQUESTS = json.loads((CASES / "requests.json").read_text())
REFUSED = json.loads((CASES / "refused.json").read_text())
MINIMAL = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
MINIMAL_SHAPE = {"model": "m", "turns": [["user", "hello"]], "sampling": {"max_tokens": 10}}
LIMITS = BodyLimits(max_depth=8, max_messages=50, max_option_bytes=10_000)
DIALECT = AnthropicMessages(LIMITS)
COUNT = AnthropicCount(LIMITS)
INTERNALS = re.compile(r"\$|Struct|msgspec|Error\b|\b(?:int|str|float|bool|dict|None|Raw)\b|recursion")


def inbound(headers: dict[str, str] | None = None) -> Inbound:
    return Inbound("POST", "/v1/messages", "", headers or {})


def body_of(case: dict[str, Any]) -> bytes:
    if "raw" in case:
        return case["raw"].encode()
    return json.dumps(case.get("body", {**MINIMAL, **case.get("set", {})})).encode()


def refusal(body: bytes) -> ErrorInfo:
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(inbound(), body)
    return caught.value.info


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_what_is_asked_for_arrives(case: dict[str, Any]) -> None:
    request = DIALECT.parse(inbound(case.get("headers")), body_of(case))
    assert json.loads(json.dumps(shape_of(request))) == {**MINIMAL_SHAPE, **case["ir"]}
    assert all(loss.reason for loss in request.losses)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(case: dict[str, Any]) -> None:
    info = refusal(body_of(case))
    assert info.param == case["param"]
    assert case.get("says", "") in info.message
    assert not INTERNALS.search(info.message)
    rendered = error_answer(info, inbound({"x-request-id": "r"}))
    assert rendered.status == 400
    body = json.loads(rendered.body)
    # The dialect has no field for the place.
    message = body["error"].pop("message")
    assert info.message in message
    assert (info.param or "") in message
    assert body == {"type": "error", "error": {"type": "invalid_request_error"}, "request_id": "r"}


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_counting_takes_the_same_bodies_with_or_without_what_only_answers_need(case: dict[str, Any]) -> None:
    body = json.loads(body_of(case))
    whole = DIALECT.parse(inbound(), json.dumps(body).encode())
    for name in ("max_tokens", "stream", "stop_sequences"):
        body.pop(name, None)
    counted = COUNT.parse(inbound(), json.dumps(body).encode())
    assert (counted.turns, counted.tools, counted.reasoning) == (whole.turns, whole.tools, whole.reasoning)
    assert not counted.stream


def test_counting_gives_one_number() -> None:
    rendered = COUNT.render(COUNT.parse(inbound(), body_of({})), 12)
    assert (rendered.status, rendered.body) == (200, b'{"input_tokens":12}')


def test_a_conversation_may_not_be_longer_than_the_limit() -> None:
    many = [{"role": "user", "content": "a"}] * 51
    assert refusal(body_of({"set": {"messages": many}})).param == "messages"
    blocks = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 51}]
    assert refusal(body_of({"set": {"messages": blocks}})).param == "messages[0].content"
    call = {"type": "tool_use", "id": "t", "name": "x", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}] * 49}
    nested = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}]
    assert refusal(body_of({"set": {"messages": [*nested, {"role": "user", "content": [result]}]}})).param == (
        "messages[2].content[0].content"
    )


def test_a_schema_may_not_be_deeper_or_longer_than_the_limit() -> None:
    deep: dict[str, Any] = {}
    for _ in range(9):
        deep = {"properties": deep}
    assert refusal(body_of({"set": {"tools": [{"name": "x", "input_schema": deep}]}})).param == "tools[0].input_schema"
    long = {"description": "a" * 10_001}
    assert refusal(body_of({"set": {"tools": [{"name": "x", "input_schema": long}]}})).param == "tools[0].input_schema"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just("text"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "source", "id", "input", "name", "tool_use_id", "data"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(["messages", "system", "tools", "tool_choice", "thinking", "output_config"]), VALUES)
def test_any_value_of_a_field_is_taken_or_refused_with_its_place(name: str, value: Any) -> None:
    body = body_of({"set": {name: value}})
    info = None
    try:
        DIALECT.parse(inbound(), body)
    except RequestError as error:
        info = error.info
    assert info is None or info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)
    assert info is None or (info.param or "").startswith(name)


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    assert refusal(data).kind is ErrorKind.INVALID_REQUEST
