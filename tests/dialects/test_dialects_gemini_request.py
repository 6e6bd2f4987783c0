"""Gemini requests: what is carried, what is listed as lost, and how each mistake is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dialects_shapes import shape_of
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import Inbound
from extproc.dialects.gemini import GeminiCount, GeminiGenerate
from extproc.dialects.gemini_errors import error_answer
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import ErrorInfo, ErrorKind, RequestError

CASES = Path(__file__).parent / "cases" / "gemini"
REQUESTS = json.loads((CASES / "requests.json").read_text())
REFUSED = json.loads((CASES / "refused.json").read_text())
MINIMAL = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
MINIMAL_SHAPE = {"model": "m", "turns": [["user", "hello"]]}
LIMITS = BodyLimits(max_depth=8, max_messages=50, max_option_bytes=10_000)
DIALECT = GeminiGenerate(LIMITS)
COUNT = GeminiCount(LIMITS)
ROUTES = Routes(all_dialects(LIMITS))
PATH = "/v1beta/models/m:generateContent"
INTERNALS = re.compile(r"\$|Struct|msgspec|Error\b|\b(?:int|str|float|bool|dict|None|Raw)\b|recursion|snake_")


def inbound(path: str = PATH) -> Inbound:
    route = ROUTES.find("POST", path, {})
    assert route.dialect.name == "gemini"
    return route.inbound


def body_of(case: dict[str, Any]) -> bytes:
    if "raw" in case:
        return case["raw"].encode()
    body = case.get("body", {**MINIMAL, **case.get("set", {})})
    if "tools" in case:
        body["tools"] = [{"functionDeclarations": [{"name": name} for name in case["tools"]]}]
    return json.dumps(body).encode()


def refusal(body: bytes) -> ErrorInfo:
    with pytest.raises(RequestError) as caught:
        DIALECT.parse(inbound(), body)
    return caught.value.info


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_what_is_asked_for_arrives(case: dict[str, Any]) -> None:
    request = DIALECT.parse(inbound(case.get("path", PATH)), body_of(case))
    shape = json.loads(json.dumps(shape_of(request)))
    assert shape == {**MINIMAL_SHAPE, **case["ir"]}
    for tool, expected in zip(shape.get("tools", ()), case["ir"].get("tools", ()), strict=True):
        # Also in the order in which an engine will write them.
        assert json.dumps(tool) == json.dumps(expected)
    assert all(loss.reason for loss in request.losses)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(case: dict[str, Any]) -> None:
    info = refusal(body_of(case))
    assert info.param == case["param"]
    assert case.get("says", "") in info.message
    assert not INTERNALS.search(info.message)
    rendered = error_answer(info, inbound())
    assert rendered.status == 400
    error = json.loads(rendered.body)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert (info.param or "") in error["message"]
    fields = [violation["field"] for detail in error.get("details", ()) for violation in detail["fieldViolations"]]
    assert fields == ([info.param] if info.param else [])


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_counting_takes_the_same_bodies_by_themselves_or_wrapped(case: dict[str, Any], wrapped: bool) -> None:
    body = json.loads(body_of(case))
    whole = DIALECT.parse(inbound(), json.dumps(body).encode())
    given = {"generateContentRequest": body} if wrapped else body
    counted = COUNT.parse(inbound(PATH.replace("generateContent", "countTokens")), json.dumps(given).encode())
    assert (counted.turns, counted.tools, counted.reasoning) == (whole.turns, whole.tools, whole.reasoning)
    assert not counted.stream


def test_a_mistake_within_a_wrapped_request_is_named_from_the_outside() -> None:
    body = {"generateContentRequest": {"contents": [{"parts": [{"text": 1}]}]}}
    with pytest.raises(RequestError) as caught:
        COUNT.parse(inbound(), json.dumps(body).encode())
    assert caught.value.info.param == "generateContentRequest.contents[0].parts[0].text"


def test_counting_gives_one_number_that_the_sdk_reads() -> None:
    rendered = COUNT.render(COUNT.parse(inbound(), body_of({})), 12)
    counted = types.CountTokensResponse.model_validate_json(
        json.dumps({"totalTokens": json.loads(rendered.body)["totalTokens"]})
    )
    assert (rendered.status, counted.total_tokens) == (200, 12)


def test_a_conversation_may_not_be_longer_than_the_limit() -> None:
    many = [{"role": role, "parts": [{"text": "a"}]} for role in ("user", "model") * 26]
    assert refusal(body_of({"set": {"contents": many}})).param == "contents"
    parts = [{"role": "user", "parts": [{"text": "a"}] * 51}]
    assert refusal(body_of({"set": {"contents": parts}})).param == "contents[0].parts"


def test_a_schema_may_not_be_deeper_or_longer_than_the_limit() -> None:
    deep: dict[str, Any] = {}
    for _ in range(9):
        deep = {"properties": {"a": deep}}
    declared = {"name": "x", "parameters": deep}
    place = "tools[0].functionDeclarations[0].parameters"
    assert refusal(body_of({"set": {"tools": [{"functionDeclarations": [declared]}]}})).param == place
    declared = {"name": "x", "parameters": {"description": "a" * 10_001}}
    assert refusal(body_of({"set": {"tools": [{"functionDeclarations": [declared]}]}})).param == place


def test_every_field_of_a_part_that_the_sdk_knows_is_known() -> None:
    for name, field in types.Part.model_fields.items():
        for key in {name, field.alias} - {"text", None}:
            contents = [{"parts": [{"text": "a", key: None}]}]
            assert DIALECT.parse(inbound(), body_of({"set": {"contents": contents}})).turns[0].text == "a"


KEYS = (
    "text role parts functionCall function_response name args response inlineData thoughtSignature mime_type type "
    "properties functionDeclarations parameters"
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just("text"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.sampled_from(["contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "generation_config"]),
    VALUES,
)
def test_any_value_of_a_field_is_taken_or_refused_with_its_place(name: str, value: Any) -> None:
    info = None
    try:
        DIALECT.parse(inbound(), body_of({"set": {name: value}}))
    except RequestError as error:
        info = error.info
    assert info is None or info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)
    assert info is None or (info.param or "").startswith(name)


@given(VALUES)
def test_any_schema_is_taken_or_refused_with_its_place(value: Any) -> None:
    info = None
    try:
        DIALECT.parse(
            inbound(), body_of({"set": {"generationConfig": {"responseSchema": {"type": "OBJECT", "items": value}}}})
        )
    except RequestError as error:
        info = error.info
    assert info is None or (info.param or "").startswith("generationConfig.responseSchema")


@given(st.binary(max_size=60))
def test_any_bytes_are_taken_or_refused(data: bytes) -> None:
    assert refusal(data).kind is ErrorKind.INVALID_REQUEST
