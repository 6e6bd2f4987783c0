"""Responses requests: what is carried, what is listed as lost, and how each mistake is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dialects_shapes import shape_of
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_errors import render_error
from extproc.dialects.openai_responses import OpenAIResponses, ResponsesCount
from extproc.ir import ErrorInfo, ErrorKind, RequestError

CASES = Path(__file__).parent / "cases" / "responses"
REQUESTS = json.loads((CASES / "requests.json").read_text())
REFUSED = json.loads((CASES / "refused.json").read_text())
MINIMAL = {"model": "m", "input": "hello"}
MINIMAL_SHAPE = {"model": "m", "turns": [["user", "hello"]]}
LIMITS = BodyLimits(max_depth=8, max_messages=50, max_option_bytes=10_000)
DIALECT = OpenAIResponses(LIMITS)
COUNT = ResponsesCount(LIMITS)
INBOUND = Inbound("POST", "/v1/responses", "", {})
INTERNALS = re.compile(r"`|\$|Struct|msgspec|Error\b|\b(?:int|str|float|bool|dict|None|Raw)\b|recursion")


def body_of(case: dict[str, Any]) -> bytes:
    if "raw" in case:
        return case["raw"].encode()
    return json.dumps(case.get("body", {**MINIMAL, **case.get("set", {})})).encode()


def refusal(body: bytes) -> ErrorInfo:
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(INBOUND, body)
    return caught.value.info


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_what_is_asked_for_arrives(case: dict[str, Any]) -> None:
    request = DIALECT.parse(INBOUND, body_of(case))
    assert json.loads(json.dumps(shape_of(request))) == {**MINIMAL_SHAPE, **case["ir"]}
    assert all(loss.reason for loss in request.losses)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(case: dict[str, Any]) -> None:
    info = refusal(body_of(case))
    assert (info.param, info.code) == (case["param"], case["code"])
    assert case.get("says", "") in info.message
    assert not INTERNALS.search(info.message)
    assert render_error(info).status == 400


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_counting_takes_the_same_bodies(case: dict[str, Any]) -> None:
    whole = DIALECT.parse(INBOUND, body_of(case))
    counted = COUNT.parse(INBOUND, body_of(case))
    assert (counted.turns, counted.tools, counted.reasoning) == (whole.turns, whole.tools, whole.reasoning)
    assert not counted.stream
    assert json.loads(COUNT.render(counted, 12).body) == {"object": "response.input_tokens", "input_tokens": 12}


def test_a_conversation_may_not_be_longer_than_the_limit() -> None:
    assert refusal(body_of({"set": {"input": [{"role": "user", "content": "a"}] * 51}})).param == "input"
    parts = [{"type": "input_text", "text": "a"}] * 50
    assert refusal(body_of({"set": {"input": [{"role": "user", "content": parts}]}})).param == "input[0].content"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just("message"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "id", "call_id", "output", "summary", "name", "format"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(["input", "tools", "tool_choice", "text", "reasoning", "metadata", "include"]), VALUES)
def test_any_value_of_a_field_is_taken_or_refused_with_its_place(name: str, value: Any) -> None:
    body = body_of({"set": {name: value}})
    info = None
    try:
        DIALECT.parse(INBOUND, body)
    except RequestError as error:
        info = error.info
    assert info is None or info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)
    assert info is None or (info.param or "").startswith(name)
