"""Tools, reasoning, media and forms of the answer in Chat Completions: requests in, answers out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from dialects_canned_server import Reader, canned_reader
from openai.types.chat import ChatCompletionMessageFunctionToolCall

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.ir import (
    UNSET,
    ChatRequest,
    Event,
    Finish,
    FinishReason,
    Media,
    Opaque,
    OpaqueDelta,
    OutputFormat,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    Sampling,
    Text,
    TextDelta,
    ToolArgsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    ToolChoice,
    ToolDef,
    ToolResult,
    Turn,
    Usage,
)

DIALECT = OpenAIChat(BodyLimits())
INBOUND = Inbound("POST", "/v1/chat/completions", "", {})
IDENTITY = AnswerIdentity("chatcmpl-1", 5, "m")
USAGE = Usage(10, 9, 0, 4)
USER = {"role": "user", "content": "a"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True},
}
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "s", "format": {"type": "text"}}}
SSE = (("content-type", "text/event-stream"),)


def parse(messages: list[Any] | None = None, **fields: Any) -> ChatRequest:
    return DIALECT.parse(INBOUND, json.dumps({"model": "m", "messages": messages or [USER], **fields}).encode())


def test_tools_of_both_kinds_arrive() -> None:
    asked = parse(tools=[WEATHER, SHELL, {"type": "function", "function": {"name": "now"}}], parallel_tool_calls=False)
    assert asked.tools == (
        ToolDef(name="weather", description="d", parameters={"type": "object"}, strict=True),
        ToolDef(name="shell", description="s", custom=True),
        ToolDef(name="now"),
    )
    assert asked.parallel_tool_calls is False
    assert asked.tool_choice == ToolChoice()
    assert parse().parallel_tool_calls is UNSET


@pytest.mark.parametrize(
    ("written", "choice"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "weather"}}, ToolChoice("named", ("weather",))),
        ({"type": "function", "name": "weather"}, ToolChoice("named", ("weather",))),
        ({"type": "custom", "custom": {"name": "shell"}}, ToolChoice("named", ("shell",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER, SHELL]}},
            ToolChoice("required", ("weather", "shell")),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice("auto", ("weather",)),
        ),
    ],
)
def test_every_form_of_the_choice_is_understood(written: object, choice: ToolChoice) -> None:
    assert parse(tools=[WEATHER, SHELL], tool_choice=written).tool_choice == choice


def test_a_conversation_with_calls_results_and_reasoning_keeps_all_of_them() -> None:
    asked = parse(
        [
            USER,
            {
                "role": "assistant",
                "content": "Let me look.",
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": tru'}},
                    {"id": "c2", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "x"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "assistant", "content": None, "refusal": "No.", "reasoning": "Oh."},
            {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
            {"role": "function", "name": "now", "content": "12:00"},
        ]
    )
    call = asked.turns[5].parts[0]
    assert isinstance(call, ToolCall)
    assert asked.turns[1:] == (
        Turn(
            "assistant",
            (
                Reasoning("Hm."),
                Text("Let me look."),
                ToolCall(call_id="c1", name="weather", arguments='{"a": tru'),
                ToolCall(call_id="c2", name="shell", arguments="ls", custom=True),
            ),
        ),
        Turn("tool", (ToolResult(call_id="c2", parts=(Text("x"),), name="shell"),)),
        Turn("tool", (ToolResult(call_id="c1", parts=(Text("sunny"),), name="weather"),)),
        Turn("assistant", (Reasoning("Oh."), Refusal("No."))),
        Turn("assistant", (ToolCall(call_id=call.call_id, name="now", arguments="{}"),)),
        Turn("tool", (ToolResult(call_id=call.call_id, parts=(Text("12:00"),), name="now"),)),
    )


def test_signatures_come_back_with_their_reasoning() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
    ]
    asked = parse([USER, {"role": "assistant", "content": "b", "reasoning_content": "Hm.", "thinking_blocks": blocks}])
    assert asked.turns[1].parts == (
        Reasoning("Hm.", opaque=(Opaque("anthropic", "signature", "s"),)),
        Reasoning("", opaque=(Opaque("anthropic", "redacted", "d"),)),
        Text("b"),
    )


def test_media_is_parsed_with_its_place() -> None:
    asked = parse(
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"file_id": "f", "filename": "a.pdf"}},
                ],
            }
        ]
    )
    where = "messages[0].content[{}].type".format
    assert asked.turns[0].parts == (
        Media(modality="image", data="AAAA", mime="image/png", detail="low", path=where(0)),
        Media(modality="image", url="https://example.com/a.png", path=where(1)),
        Media(modality="audio", data="AAAA", mime="audio/wav", path=where(2)),
        Media(modality="document", file_id="f", filename="a.pdf", path=where(3)),
    )


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OutputFormat(kind="json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            OutputFormat(kind="json_schema", schema=SCHEMA, name="n", strict=True),
        ),
        (
            {"response_format": {"type": "structural_tag", "structures": []}},
            OutputFormat(kind="structural_tag", schema={"type": "structural_tag", "structures": []}),
        ),
        ({"guided_json": SCHEMA}, OutputFormat(kind="json_schema", schema=SCHEMA, path="guided_json")),
        ({"json_schema": json.dumps(SCHEMA)}, OutputFormat(kind="json_schema", schema=SCHEMA, path="json_schema")),
        ({"guided_choice": ["a", "b"]}, OutputFormat(kind="choice", choices=("a", "b"), path="guided_choice")),
        ({"ebnf": "root ::= 'a'"}, OutputFormat(kind="grammar", text="root ::= 'a'", path="ebnf")),
        (
            {"structured_outputs": {"regex": "a+"}},
            OutputFormat(kind="regex", text="a+", path="structured_outputs.regex"),
        ),
    ],
)
def test_every_form_of_the_answer_is_understood(fields: dict[str, Any], output: OutputFormat | None) -> None:
    assert parse(**fields).output == output


def test_a_wish_to_reason_arrives() -> None:
    assert parse(reasoning_effort="high").reasoning.effort == "high"
    assert parse(reasoning_effort="none").reasoning.wanted is False
    assert parse().reasoning.wanted is None


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with canned_reader() as reader:
        yield reader


EVENTS: list[Event] = [
    ReasoningDelta(0, "Hm"),
    ReasoningDelta(0, "."),
    TextDelta(0, "Let me look."),
    ToolCallStart(0, 0, "call_a", "weather"),
    ToolArgsDelta(0, 0, '{"city": '),
    ToolArgsDelta(0, 0, '"Zürich"}'),
    ToolCallEnd(0, 0, '{"city": "Zürich"}'),
    ToolCallStart(0, 1, "call_b", "now"),
    ToolArgsDelta(0, 1, "{}"),
    ToolCallEnd(0, 1, "{}"),
    Finish(0, FinishReason.TOOL_CALLS),
]
SENT = [{"role": "user", "content": "a"}]


def stream_of(events: list[Event], **asked: Any) -> bytes:
    renderer = DIALECT.stream(ChatRequest(model="m", turns=(), **asked), IDENTITY)
    return renderer.start() + b"".join(renderer.events([event]) for event in events) + renderer.end(USAGE)


def whole_of(events: list[Event], **asked: Any) -> bytes:
    renderer = DIALECT.whole(ChatRequest(model="m", turns=(), **asked), IDENTITY)
    renderer.events(events)
    return renderer.end(USAGE)


def test_the_sdk_gathers_calls_and_reasoning_from_a_stream(reader: Reader) -> None:
    client = reader.will_read(200, SSE, stream_of(EVENTS, include_usage=True))
    with client.chat.completions.stream(model="m", messages=SENT) as stream:  # type: ignore[arg-type]
        choice = stream.get_final_completion().choices[0]
    message = choice.message
    assert message.model_extra is not None
    assert (message.content, message.model_extra["reasoning_content"]) == ("Let me look.", "Hm.")
    assert choice.finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("call_a", "weather", '{"city": "Zürich"}'),
        ("call_b", "now", "{}"),
    ]


def test_the_sdk_reads_calls_and_reasoning_from_a_whole_answer(reader: Reader) -> None:
    client = reader.will_read(200, (("content-type", "application/json"),), whole_of([*EVENTS[:2], *EVENTS[3:]]))
    completion = client.chat.completions.create(model="m", messages=SENT)  # type: ignore[arg-type]
    message = completion.choices[0].message
    assert message.content is None
    assert message.model_extra is not None
    assert (message.model_extra["reasoning"], message.model_extra["reasoning_content"]) == ("Hm.", "Hm.")
    calls = message.tool_calls or []
    assert [call.id for call in calls] == ["call_a", "call_b"]
    assert isinstance(calls[0], ChatCompletionMessageFunctionToolCall)
    assert calls[0].function.arguments == '{"city": "Zürich"}'
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens == 4


def test_reasoning_that_is_not_wanted_is_left_out() -> None:
    omitted = parse(include_reasoning=False).reasoning
    assert b"Hm" not in stream_of(EVENTS, reasoning=omitted)
    assert b"reasoning_content" not in whole_of(EVENTS, reasoning=omitted)


def test_calls_of_several_choices_do_not_mix() -> None:
    events: list[Event] = [
        ToolCallStart(0, 0, "c0", "shell", custom=True),
        ToolCallStart(1, 0, "c1", "weather"),
        ToolArgsDelta(0, 0, "ls"),
        ToolArgsDelta(1, 0, "{}"),
        ToolCallEnd(1, 0, "{}"),
        ToolCallEnd(0, 0, "ls"),
        Finish(1, FinishReason.TOOL_CALLS),
        Finish(0, FinishReason.TOOL_CALLS),
    ]
    answer = json.loads(whole_of(events, sampling=Sampling(n=2)))
    assert [choice["message"]["tool_calls"] for choice in answer["choices"]] == [
        [{"id": "c0", "type": "custom", "custom": {"name": "shell", "input": "ls"}}],
        [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    ]
    streamed = stream_of(events, sampling=Sampling(n=2))
    assert b'"delta":{"tool_calls":[{"index":0,"custom":{"input":"ls"}}]}' in streamed
    assert b'"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}' in streamed


def test_refusals_and_signatures_have_their_places() -> None:
    events: list[Event] = [
        ReasoningDelta(0, "Hm."),
        OpaqueDelta(0, Opaque("anthropic", "signature", "s")),
        RefusalDelta(0, "No."),
        Finish(0, FinishReason.REFUSAL),
    ]
    choice = json.loads(whole_of(events))["choices"][0]
    assert (choice["message"]["content"], choice["message"]["refusal"]) == (None, "No.")
    assert choice["message"]["thinking_blocks"] == [{"type": "thinking", "thinking": "", "signature": "s"}]
    assert choice["finish_reason"] == "stop"
    assert b'"delta":{"refusal":"No."}' in stream_of(events)
