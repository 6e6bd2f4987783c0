"""Any answer, in every dialect: the SDK's accumulator reads the same from the stream, whatever comes in which order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import ollama
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import Omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import (
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

Read: TypeAlias = tuple[str, str, list[tuple[str, Any]]]
"""Text, reasoning, calls with their arguments."""

ROUTES = Routes(all_dialects(BodyLimits()))
IDENTITY = AnswerIdentity("x_1", 1_700_000_000, "a model", 11)
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=8, reasoning_tokens=2)
BROKEN = ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="it broke off")
SCHEMA = {"type": "object", "properties": {}}
ANTHROPIC_EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
RESPONSES_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def data_of(stream: bytes) -> Iterator[Any]:
    """The values of an event stream that ends with a whole event."""
    *blocks, rest = stream.split(b"\n\n")
    assert rest == b""
    for block in blocks:
        [data] = [line for line in block.split(b"\n") if line.startswith(b"data: ")]
        if data != b"data: [DONE]":
            yield json.loads(data.removeprefix(b"data: "))


def read_chat(stream: bytes) -> Read:
    assert stream.endswith(b"data: [DONE]\n\n")
    state = ChatCompletionStreamState()
    for value in data_of(stream):
        state.handle_chunk(ChatCompletionChunk.model_validate(value, strict=True))
    message = state.current_completion_snapshot.choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    return message.content or "", (message.model_extra or {}).get("reasoning_content") or "", calls


def read_responses(stream: bytes) -> Read:
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=Omit(), text_format=Omit())
    for value in data_of(stream):
        event = RESPONSES_EVENT.validate_python(value)
        state.handle_event(event)
    assert event.type in ("response.completed", "response.incomplete")
    output = event.response.output
    calls = [(item.name, json.loads(item.arguments)) for item in output if item.type == "function_call"]
    said = "".join(part.text for item in output if item.type == "message" for part in item.content)
    thought = "".join(part.text for item in output if item.type == "reasoning" for part in item.content or ())
    return said, thought, calls


def read_anthropic(stream: bytes) -> Read:
    message: Any = None
    buffers: dict[int, bytes] = {}
    for value in data_of(stream):
        if value["type"] != "ping":
            event = ANTHROPIC_EVENT.validate_python(value)
            message = accumulate_event(event=event, current_snapshot=message, json_bufs=buffers)
    assert value["type"] == "message_stop"
    calls = [(block.name, block.input) for block in message.content if block.type == "tool_use"]
    said = "".join(block.text for block in message.content if block.type == "text")
    thought = "".join(block.thinking for block in message.content if block.type == "thinking")
    return said, thought, calls


def read_gemini(stream: bytes) -> Read:
    answers = [types.GenerateContentResponse.model_validate(value) for value in data_of(stream)]
    candidates = [answer.candidates[0] for answer in answers if answer.candidates]
    assert [one.finish_reason for one in candidates if one.finish_reason] == [candidates[-1].finish_reason]
    parts = [part for one in candidates if one.content for part in one.content.parts or ()]
    calls = [(part.function_call.name or "", part.function_call.args) for part in parts if part.function_call]
    said = "".join(part.text or "" for part in parts if not part.thought)
    thought = "".join(part.text or "" for part in parts if part.thought)
    return said, thought, calls


def read_ollama(stream: bytes) -> Read:
    lines = [ollama.ChatResponse.model_validate_json(line) for line in stream.splitlines()]
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    calls = [
        (call.function.name, dict(call.function.arguments)) for line in lines for call in line.message.tool_calls or ()
    ]
    said = "".join(line.message.content or "" for line in lines)
    return said, "".join(line.message.thinking or "" for line in lines), calls


FLAT = [{"type": "function", "name": "tool", "parameters": SCHEMA}]
NESTED = [{"type": "function", "function": {"name": "tool", "parameters": SCHEMA}}]
USER = [{"role": "user", "content": "a"}]
DIALECTS: Mapping[str, tuple[str, dict[str, Any], Callable[[bytes], Read]]] = {
    "chat": ("/v1/chat/completions", {"messages": USER, "tools": NESTED, "stream": True}, read_chat),
    "responses": ("/v1/responses", {"input": "a", "tools": FLAT, "stream": True}, read_responses),
    "anthropic": (
        "/v1/messages",
        {"messages": USER, "max_tokens": 9, "tools": [{"name": "tool", "input_schema": SCHEMA}], "stream": True},
        read_anthropic,
    ),
    "gemini": (
        "/v1/models/m:streamGenerateContent?alt=sse",
        {
            "contents": [{"parts": [{"text": "a"}]}],
            "tools": [{"functionDeclarations": [{"name": "tool"}]}],
            "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        },
        read_gemini,
    ),
    "ollama": ("/api/chat", {"messages": USER, "tools": NESTED, "think": True}, read_ollama),
}
"""Path, body and reader, by dialect."""


def renderer_of(dialect: str) -> Any:
    """A new renderer of a streamed answer."""
    path, fields, _ = DIALECTS[dialect]
    route = ROUTES.find("POST", path, {})
    codec = route.dialect.chat
    assert codec is not None
    named = fields if dialect == "gemini" else {"model": "m", **fields}
    return codec.stream(codec.parse(route.inbound, json.dumps(named).encode()), IDENTITY)


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
PARTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["text", "reasoning"]), st.lists(WORDS, min_size=1, max_size=3)),
        st.tuples(st.just("call"), st.dictionaries(WORDS, st.integers(-(2**53), 2**53) | WORDS, max_size=3)),
    ),
    max_size=7,
)
REASONS = st.sampled_from(
    [FinishReason.STOP, FinishReason.STOP_SEQUENCE, FinishReason.LENGTH, FinishReason.CONTENT_FILTER]
)


def events_of(parts: list[Any], reason: FinishReason) -> tuple[list[Event], Read]:
    """The events of an answer, and what it says."""
    events: list[Event] = []
    said: list[str] = []
    thought: list[str] = []
    calls: list[tuple[str, Any]] = []
    for kind, held in parts:
        if kind == "text":
            said += held
            events += [TextDelta(0, text) for text in held]
        elif kind == "reasoning":
            thought += held
            events += [ReasoningDelta(0, text) for text in held]
        else:
            index, arguments = len(calls), json.dumps(held, ensure_ascii=False)
            calls.append(("tool", held))
            events.append(ToolCallStart(0, index, f"call_{index}", "tool"))
            events += [ToolArgsDelta(0, index, arguments[at : at + 3]) for at in range(0, len(arguments), 3)]
            events.append(ToolCallEnd(0, index, arguments))
    if calls and reason is FinishReason.STOP:
        reason = FinishReason.TOOL_CALLS
    return [*events, Finish(0, reason)], ("".join(said), "".join(thought), calls)


def batches_of(events: list[Event], cuts: list[int]) -> list[list[Event]]:
    borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    return [events[begin:end] for begin, end in pairwise(borders)]


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=40, deadline=None)  # the SDKs' types are large
@given(PARTS, REASONS, st.lists(st.integers(0, 40), max_size=5))
def test_the_sdk_reads_what_was_said(dialect: str, parts: list[Any], reason: FinishReason, cuts: list[int]) -> None:
    events, said = events_of(parts, reason)
    renderer = renderer_of(dialect)
    pieces = [renderer.start(), *map(renderer.events, batches_of(events, cuts)), renderer.end(USAGE)]
    assert DIALECTS[dialect][2](b"".join(pieces)) == said


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=40, deadline=None)
@given(PARTS, st.integers(0, 40))
def test_an_answer_that_breaks_off_anywhere_ends_with_an_error(dialect: str, parts: list[Any], cut: int) -> None:
    events = events_of(parts, FinishReason.STOP)[0][:-1]
    renderer = renderer_of(dialect)
    stream = renderer.start() + renderer.events(events[:cut]) + renderer.error(BROKEN)
    values = [json.loads(line) for line in stream.splitlines()] if dialect == "ollama" else list(data_of(stream))
    last = values[-1]
    assert "it broke off" in json.dumps(last)
    if dialect == "responses":
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    else:
        assert last["error"]
    assert b"[DONE]" not in stream
    assert not any(value.get("done") or value.get("type") == "message_stop" for value in values)
