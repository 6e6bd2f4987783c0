"""Completions and Embeddings: what is carried, how each mistake is named, and what answers look like."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import openai.types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_completions import OpenAICompletions
from extproc.dialects.openai_completions_answer import CompletionStream, CompletionWhole
from extproc.dialects.openai_embeddings import OpenAIEmbeddings
from extproc.dialects.openai_errors import render_error
from extproc.ir import (
    UNSET,
    Embedding,
    EmbedRequest,
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    RequestError,
    Sampling,
    TextDelta,
    TextRequest,
    TokenLogprob,
    Usage,
)

CASES = Path(__file__).parent / "cases" / "texts"
LIMITS = BodyLimits(max_choices=8)
INBOUND = Inbound("POST", "/v1/completions", "", {})
COMPLETIONS, EMBEDDINGS = OpenAICompletions(LIMITS), OpenAIEmbeddings(LIMITS)
DIALECTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "completions": (COMPLETIONS, {"model": "m", "prompt": "p"}),
    "embeddings": (EMBEDDINGS, {"model": "m", "input": "p"}),
}
IDENTITY = AnswerIdentity("cmpl-1", 1700000000, "m")
USAGE = Usage(3, 5, 2)


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}: {case['name']}")
        for name in DIALECTS
        for case in json.loads((CASES / f"{name}{kind}.json").read_text())
    ]


def parse(name: str, case: dict[str, Any]) -> Any:
    dialect, minimal = DIALECTS[name]
    body = case["raw"] if "raw" in case else json.dumps(case.get("body", {**minimal, **case.get("set", {})}))
    return dialect.parse(INBOUND, body.encode())


def shape(request: TextRequest | EmbedRequest) -> dict[str, Any]:
    """What differs from the defaults, as JSON."""
    found: dict[str, Any] = {}
    for field in request.__struct_fields__:
        value = getattr(request, field)
        if field == "losses":
            value = [loss.field for loss in value]
        elif field == "sampling":
            value = {
                name: knob
                for name in value.__struct_fields__
                if (knob := getattr(value, name)) is not UNSET and knob != getattr(Sampling(), name)
            }
        if field == "add_special_tokens":
            if not value:
                found[field] = False
        elif value not in (None, False, [], {}):
            found[field] = value
    shaped: dict[str, Any] = json.loads(json.dumps(found))
    return shaped


@pytest.mark.parametrize(("name", "case"), cases(""))
def test_what_is_asked_for_arrives(name: str, case: dict[str, Any]) -> None:
    request = parse(name, case)
    minimal: dict[str, Any] = (
        {"model": "m", "prompts": ["p"], "sampling": {"max_tokens": 16}}
        if name == "completions"
        else {"model": "m", "inputs": ["p"]}
    )
    assert shape(request) == {**minimal, **case["ir"]}


@pytest.mark.parametrize(("name", "case"), cases("_refused"))
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(name: str, case: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        parse(name, case)
    info = caught.value.info
    assert (info.param, info.code) == (case["param"], case["code"])
    assert case.get("says", "") in info.message
    assert render_error(info).status == 400


def valid(value: Any) -> bool:
    """Whether it is a text or several, within the limits."""

    def ids(value: Any) -> bool:
        return bool(value) and all(type(each) is int and 0 <= each < 2**31 for each in value)

    if not isinstance(value, list):
        return isinstance(value, str)
    if not value or all(isinstance(each, str) for each in value):
        return bool(value)
    return ids(value) or all(isinstance(each, list) and ids(each) for each in value)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4)))
def test_any_prompt_is_carried_or_refused(value: Any) -> None:
    for name, (dialect, minimal) in DIALECTS.items():
        field = "prompt" if name == "completions" else "input"
        body = json.dumps({**minimal, field: value}).encode()
        if not valid(value):
            with pytest.raises(RequestError) as caught:
                dialect.parse(INBOUND, body)
            assert (caught.value.info.param or field).startswith(field)
            continue
        request = dialect.parse(INBOUND, body)
        texts = request.prompts if name == "completions" else request.inputs
        one = isinstance(value, str) or isinstance(value[0], int)
        assert list(texts) == [tuple(each) if isinstance(each, list) else each for each in ([value] if one else value)]


def chunks(body: bytes) -> list[Any]:
    *events, rest = body.split(b"\n\n")
    assert rest == b""
    return [event.removeprefix(b"data: ") for event in events]


REASONS = [
    ("stop", FinishReason.STOP),
    ("stop", FinishReason.STOP_SEQUENCE),
    ("length", FinishReason.LENGTH),
    ("content_filter", FinishReason.CONTENT_FILTER),
    ("stop", FinishReason.TOOL_CALLS),
    ("stop", FinishReason.REFUSAL),
]


@pytest.mark.parametrize(("said", "reason"), REASONS)
def test_every_reason_to_end_has_a_word_that_the_sdk_knows(said: str, reason: FinishReason) -> None:
    events: list[Event] = [TextDelta(0, "a"), Finish(0, reason)]
    whole = CompletionWhole(IDENTITY, 1, 1, 1, logprobs=False)
    whole.events(events)
    assert openai.types.Completion.model_validate_json(whole.end(USAGE)).choices[0].finish_reason == said
    last = json.loads(chunks(CompletionStream(IDENTITY, 1, include_usage=False).events(events))[-1])
    assert last["choices"][0]["finish_reason"] == said


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, list[list[Event]]]:
    """Choices whose events come mixed, cut into pieces."""
    choices = draw(st.integers(1, 4))
    lefts: list[list[Event]] = []
    for index in range(choices):
        deltas: list[Event] = []
        for text in draw(st.lists(st.text(max_size=5), max_size=4)):
            entry = TokenLogprob(text.encode() or b"\xf0\x9f", -1.0, (TokenLogprob(b"x", float("-inf")),))
            deltas.append(TextDelta(index, text, draw(st.sampled_from([None, [entry]]))))
        lefts.append([*deltas, Finish(index, draw(st.sampled_from([reason for _, reason in REASONS])))])
    pieces: list[list[Event]] = [[]]
    while any(lefts):
        left = draw(st.sampled_from([left for left in lefts if left]))
        pieces[-1].append(left.pop(0))
        if draw(st.booleans()):
            pieces.append([])
    return choices, pieces


@given(answers(), st.booleans())
def test_a_stream_says_what_the_whole_answer_says(answer: tuple[int, list[list[Event]]], echo: bool) -> None:
    choices, pieces = answer
    echoes = [f"prompt {index}: " for index in range(choices)] if echo else []
    stream = CompletionStream(IDENTITY, choices, include_usage=True, echoes=echoes)
    body = stream.start() + b"".join(stream.events(piece) for piece in pieces) + stream.end(USAGE)
    whole = CompletionWhole(IDENTITY, choices, 1, 1, logprobs=True, echoes=echoes)
    for piece in pieces:
        whole.events(piece)
    said = openai.types.Completion.model_validate_json(whole.end(USAGE))
    *events, done = chunks(body)
    assert done == b"[DONE]"
    *parsed, last = map(json.loads, events)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == said.usage.total_tokens if said.usage else False
    assert all(chunk["usage"] is None and chunk["object"] == "text_completion" for chunk in parsed)
    for choice in said.choices:
        own = [chunk["choices"][0] for chunk in parsed if chunk["choices"][0]["index"] == choice.index]
        assert "".join(each["text"] for each in own) == choice.text
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [choice.finish_reason]
        assert own[-1]["finish_reason"]
        logprobs = [each["logprobs"] for each in own if each["logprobs"]]
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [one for each in logprobs for one in each[name]] == getattr(choice.logprobs, name)


def test_a_stream_that_breaks_has_no_end_mark() -> None:
    stream = CompletionStream(IDENTITY, 2, include_usage=True)
    body = stream.events([TextDelta(0, "a"), Finish(0, FinishReason.STOP)]) + stream.end(USAGE)
    assert json.loads(chunks(body)[-1])["error"]["code"] == "stream_truncated"
    stream = CompletionStream(IDENTITY, 1, include_usage=True)
    body = stream.events([Finish(0, FinishReason.ABORT)]) + stream.end(USAGE)
    assert json.loads(chunks(body)[-1])["error"]["code"] == "aborted"
    stream = CompletionStream(IDENTITY, 1, include_usage=True)
    assert b"[DONE]" not in stream.error(ErrorInfo(kind=ErrorKind.TIMEOUT, message="late")) + stream.end(USAGE)


def test_the_likeliest_choices_are_given_and_counted_anew() -> None:
    whole = CompletionWhole(IDENTITY, 2, 3, 2, logprobs=False)
    for index, value in enumerate([-3.0, -1.0, -2.0, -1.0, -5.0, -2.0]):
        entry = TokenLogprob(b"t", value)
        whole.events([TextDelta(index, f"{index}", [entry]), Finish(index, FinishReason.STOP)])
    choices = json.loads(whole.end(USAGE))["choices"]
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "1"), (1, "2"), (2, "3"), (3, "5")]


def test_parts_of_a_character_are_placed_where_it_begins() -> None:
    tokens = [b"a", "ü".encode()[:1], "ü".encode()[1:], b"b"]
    whole = CompletionWhole(IDENTITY, 1, 1, 1, logprobs=True, echoes=["xy"])
    whole.events([TextDelta(0, "aüb", [TokenLogprob(token, -0.5) for token in tokens]), Finish(0, FinishReason.STOP)])
    logprobs = json.loads(whole.end(USAGE))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", r"bytes:\xc3", r"bytes:\xbc", "b"]
    assert logprobs["text_offset"] == [2, 3, 3, 4]


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1), min_size=1))
def test_vectors_arrive_as_the_same_float32_in_both_forms(vectors: list[list[float]]) -> None:
    for encoding in (None, "float", "base64"):
        request = EmbedRequest(model="m", inputs=("a",) * len(vectors), own=encoding)
        answer = json.loads(EMBEDDINGS.render(request, [Embedding.of(vector, 2) for vector in vectors]).body)
        assert answer["usage"] == {"prompt_tokens": 2 * len(vectors), "total_tokens": 2 * len(vectors)}
        for index, (vector, data) in enumerate(zip(vectors, answer["data"], strict=True)):
            assert (data["index"], data["object"]) == (index, "embedding")
            value = data["embedding"]
            packed = base64.b64decode(value) if encoding == "base64" else struct.pack(f"<{len(value)}f", *value)
            assert packed == struct.pack(f"<{len(vector)}f", *vector)
