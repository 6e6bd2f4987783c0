"""Responses answers: the rules of the stream, the whole body, and what the official SDK makes of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dialects_canned_server import Reader, canned_reader
from dialects_shapes import events_of, usage_of
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import Omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_responses import OpenAIResponses
from extproc.ir import (
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    Opaque,
    OpaqueDelta,
    Reasoning,
    ReasoningDelta,
    Refusal,
    RefusalDelta,
    RequestError,
    Text,
    TextDelta,
    TokenLogprob,
    ToolArgsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

STREAMS = json.loads((Path(__file__).parent / "cases" / "responses" / "streams.json").read_text())
DIALECT = OpenAIResponses(BodyLimits())
IDENTITY = AnswerIdentity("resp_1", 1_700_000_000, 'a "model"', 11)
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "cached_tokens": 8, "reasoning_tokens": 2}
USAGE_JSON = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}
STRICT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "x", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with canned_reader() as reader:
        yield reader


def request(**fields: Any) -> ChatRequest:
    return DIALECT.parse(
        Inbound("POST", "/v1/responses", "", {}), json.dumps({"model": "m", "input": "a", **fields}).encode()
    )


def render(asked: ChatRequest, batches: list[list[Event]], usage: Usage) -> bytes:
    renderer = DIALECT.stream(asked, IDENTITY)
    return b"".join([renderer.start(), *map(renderer.events, batches), renderer.end(usage)])


def whole(asked: ChatRequest, batches: list[list[Event]], usage: Usage) -> Any:
    renderer = DIALECT.whole(asked, IDENTITY)
    for batch in batches:
        renderer.events(batch)
    return json.loads(renderer.end(usage))


def parsed(stream: bytes) -> list[tuple[str, Any]]:
    """Name and data of each event, without type and number; checks that the stream holds nothing else."""
    *blocks, rest = stream.split(b"\n\n")
    assert rest == b""
    events = []
    for number, block in enumerate(blocks):
        named, data = block.split(b"\n")
        name = named.removeprefix(b"event: response.").decode()
        value = json.loads(data.removeprefix(b"data: "))
        assert value.pop("type") == f"response.{name}"
        assert value.pop("sequence_number") == number
        events.append((name, value))
    return events


def accumulated(stream: bytes) -> Any:
    """What the SDK's state makes of a stream whose every event is valid by its types: the response, or None."""
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=Omit(), text_format=Omit())
    for number, (name, value) in enumerate(parsed(stream)):
        data = {"type": f"response.{name}", "sequence_number": number, **value}
        state.handle_event(STRICT.validate_python(data))
    return state._completed_response


def plain_output(response: Any) -> list[Any]:
    """The output without what the SDK adds."""
    output = response.to_dict()["output"]
    for item in output:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return output


def batches_of(case: dict[str, Any]) -> list[list[Event]]:
    return [events_of(batch) for batch in case["events"]]


@pytest.mark.parametrize("case", [case for case in STREAMS if "stream" in case], ids=lambda case: case["name"])
def test_a_stream_is_its_beginning_its_items_and_its_end(case: dict[str, Any]) -> None:
    created, in_progress, *events, last = parsed(render(request(), batches_of(case), usage_of(USAGE)))
    assert [created[0], in_progress[0], last[0]] == ["created", "in_progress", "completed"]
    assert created[1] == in_progress[1]
    assert (created[1]["response"]["status"], created[1]["response"]["output"]) == ("in_progress", [])
    assert [[name, value] for name, value in events] == case["stream"]


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_the_last_event_holds_what_was_done_and_so_does_an_answer_given_whole(case: dict[str, Any]) -> None:
    asked = request(**case.get("set", {}))
    events = parsed(render(asked, batches_of(case), usage_of(USAGE)))
    name, last = events[-1]
    response = last["response"]
    assert name == response["status"] == case["status"]
    assert response["output"] == case["output"]
    assert response["output"] == [value["item"] for name, value in events if name == "output_item.done"]
    reason = case.get("reason")
    assert response["incomplete_details"] == (None if reason is None else {"reason": reason})
    assert response["usage"] == USAGE_JSON
    body = whole(asked, batches_of(case), usage_of(USAGE))
    body["completed_at"] = response["completed_at"]
    assert body == response
    Response.model_validate(body)


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_the_sdk_reads_the_stream(case: dict[str, Any], reader: Reader) -> None:
    stream = render(request(**case.get("set", {})), batches_of(case), usage_of(USAGE))
    client = reader.will_read(200, (("content-type", "text/event-stream"),), stream)
    with client.responses.stream(model="m", input="a") as events:
        seen = [event.type for event in events]
        if case["status"] == "completed":
            assert plain_output(events.get_final_response()) == case["output"]
    assert seen[0] == "response.created"
    assert seen[-1] == f"response.{case['status']}"


def test_every_response_object_repeats_what_was_asked_and_says_that_nothing_is_stored() -> None:
    asked = request(
        instructions="Be brief.",
        store=True,
        tools=[TOOL],
        tool_choice="auto",
        metadata={"a": "b"},
        reasoning={"effort": "low"},
        text={"format": {"type": "json_object"}},
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=7,
        parallel_tool_calls=False,
        user="u",
    )
    events = parsed(render(asked, [[Finish(0, FinishReason.STOP)]], usage_of(USAGE)))
    for _, value in events:
        response = value["response"]
        assert {
            "instructions": "Be brief.",
            "store": False,
            "previous_response_id": None,
            "tools": [TOOL],
            "tool_choice": "auto",
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_object"}},
            "temperature": 0.5,
            "top_p": 0.25,
            "max_output_tokens": 7,
            "parallel_tool_calls": False,
            "user": "u",
            "id": "resp_1",
            "created_at": 1_700_000_000,
            "model": 'a "model"',
            "object": "response",
        }.items() <= response.items()


def test_log_probabilities_come_with_their_text_and_once_more_with_the_whole() -> None:
    scores = [
        TokenLogprob(b" caf\xc3", -0.5, (TokenLogprob(b" caf\xc3", -0.5),)),
        TokenLogprob(b"\xa9", float("-inf")),
    ]
    asked = request(include=["message.output_text.logprobs"], top_logprobs=1)
    stream = render(asked, [[TextDelta(0, " café", scores), Finish(0, FinishReason.STOP)]], usage_of(USAGE))
    values = dict(parsed(stream))
    entries = values["output_text.delta"]["logprobs"]
    assert [(entry["token"], entry["logprob"], entry["bytes"]) for entry in entries] == [
        (" caf\ufffd", -0.5, [32, 99, 97, 102, 195]),
        ("\ufffd", -9999.0, [169]),
    ]
    assert entries == values["output_text.done"]["logprobs"]
    assert entries == values["completed"]["response"]["output"][0]["content"][0]["logprobs"]
    assert accumulated(stream).output_text == " café"


ABORTED: list[Event] = [TextDelta(0, "a"), Finish(0, FinishReason.ABORT)]
LATE = ErrorInfo(kind=ErrorKind.RATE_LIMIT, message="too many")


@pytest.mark.parametrize(
    ("break_off", "code", "says"),
    [
        (lambda renderer: renderer.events(ABORTED), "server_error", "gave the request up"),
        (lambda renderer: renderer.events([TextDelta(0, "a")]) + renderer.end(Usage()), "server_error", "broke off"),
        (lambda renderer: renderer.events([TextDelta(0, "a")]) + renderer.error(LATE), "rate_limit_exceeded", "many"),
    ],
    ids=["an engine that gives up", "an answer without an end", "an error"],
)
def test_a_stream_that_breaks_off_ends_with_a_failure(
    reader: Reader, break_off: Callable[[Any], bytes], code: str, says: str
) -> None:
    renderer = DIALECT.stream(request(), IDENTITY)
    body = renderer.start() + break_off(renderer)
    # Nothing follows.
    assert renderer.events([TextDelta(0, "b")]) + renderer.end(Usage()) + renderer.error(LATE) == b""
    name, data = parsed(body)[-1]
    response = data["response"]
    assert (name, response["status"], response["error"]["code"]) == ("failed", "failed", code)
    assert says in response["error"]["message"]
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    client = reader.will_read(200, (("content-type", "text/event-stream"),), body)
    with client.responses.stream(model="m", input="a") as events:
        assert [event.type for event in events][-1] == "response.failed"
        with pytest.raises(RuntimeError):
            events.get_final_response()


@pytest.mark.parametrize("events", [ABORTED, [TextDelta(0, "a")]])
def test_an_incomplete_answer_is_never_given_whole(events: list[Event]) -> None:
    renderer = DIALECT.whole(request(), IDENTITY)
    renderer.events(events)
    with pytest.raises(RequestError) as caught:
        renderer.end(Usage())
    assert caught.value.info.kind is ErrorKind.BAD_GATEWAY


# Any answer: parts in any order, as R7 of the neutral form has them, cut and batched in any way.

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
BLOBS = st.builds(
    Opaque,
    st.sampled_from(["anthropic", "openai", "google"]),
    st.just("encrypted"),
    st.from_regex(r"\A[A-Za-z0-9+/]{1,12}\Z"),
)
PARTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["text", "refusal", "reasoning", "summary"]), st.lists(WORDS, min_size=1, max_size=3)
        ),
        st.tuples(st.just("opaque"), BLOBS),
        st.tuples(st.just("call"), st.dictionaries(WORDS, st.integers() | WORDS, max_size=3), st.integers(1, 5)),
        st.tuples(st.just("custom"), WORDS),
    ),
    max_size=7,
)


def events_of_parts(parts: list[Any], reason: FinishReason = FinishReason.STOP) -> list[Event]:
    events: list[Event] = []
    calls = 0
    for kind, *rest in parts:
        match kind:
            case "text":
                events += [TextDelta(0, text) for text in rest[0]]
            case "refusal":
                events += [RefusalDelta(0, text) for text in rest[0]]
            case "reasoning" | "summary":
                events += [ReasoningDelta(0, text, kind == "summary") for text in rest[0]]
            case "opaque":
                events.append(OpaqueDelta(0, rest[0]))
            case "call" | "custom":
                arguments = rest[0] if kind == "custom" else json.dumps(rest[0], ensure_ascii=False)
                size = -(-len(arguments) // (rest[1] if kind == "call" else 1))
                events.append(ToolCallStart(0, calls, f"call_{calls}", "tool", kind == "custom"))
                events += [ToolArgsDelta(0, calls, arguments[at : at + size]) for at in range(0, len(arguments), size)]
                events.append(ToolCallEnd(0, calls, arguments))
                calls += 1
    return [*events, Finish(0, reason)]


@settings(max_examples=40)  # the SDK's types are large
@given(PARTS, st.booleans())
def test_the_sdk_accepts_any_answer_and_reads_it_as_the_one_given_whole(parts: list[Any], encrypted: bool) -> None:
    asked = request(include=["reasoning.encrypted_content"] if encrypted else [])
    events = events_of_parts(parts)
    response = accumulated(render(asked, [events], usage_of(USAGE)))
    assert plain_output(response) == whole(asked, [events], usage_of(USAGE))["output"]


@given(PARTS, st.lists(st.integers(0, 30), max_size=5))
def test_the_bytes_do_not_depend_on_how_events_are_batched(parts: list[Any], cuts: list[int]) -> None:
    events = events_of_parts(parts, FinishReason.LENGTH)
    borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    batches = [events[begin:end] for begin, end in pairwise(borders)]
    assert render(request(), batches, usage_of(USAGE)) == render(request(), [events], usage_of(USAGE))


@given(PARTS, st.booleans())
def test_an_answer_that_comes_back_is_what_it_was(parts: list[Any], only_blobs: bool) -> None:
    events = events_of_parts(parts)
    asked = request(include=["reasoning.encrypted_content"])
    output = whole(asked, [events], usage_of(USAGE))["output"]
    if only_blobs:
        for item in output:
            if item.get("encrypted_content", "").startswith("llm-extproc:text:"):
                del item["content"]
    items = [{"role": "user", "content": "a"}, *output, {"role": "user", "content": "b"}]
    turns = request(input=items).turns
    said = [part for turn in turns[1:-1] for part in turn.parts]
    assert joined(said) == joined(parts_of(events))


def parts_of(events: list[Event]) -> list[Any]:
    """The parts that the events tell of."""
    parts: list[Any] = []
    customs: set[int] = set()
    for event in events:
        match event:
            case TextDelta():
                parts.append(Text(event.text))
            case RefusalDelta():
                parts.append(Refusal(event.text))
            case ReasoningDelta():
                parts.append(Reasoning(summary=(event.text,)) if event.summary else Reasoning(event.text))
            case OpaqueDelta():
                parts.append(event.opaque)
            case ToolCallStart() if event.custom:
                customs.add(event.index)
            case ToolCallEnd():
                custom = event.index in customs
                arguments = event.arguments
                call_id = f"call_{event.index}"
                parts.append(ToolCall(call_id=call_id, name="tool", arguments=arguments, custom=custom))
    return parts


def joined(parts: list[Any]) -> list[Any]:
    """What was said and called in its order, and what was thought, of which only the text as a whole matters."""
    said: list[Any] = []
    thought = summary = ""
    blobs = []
    for part in parts:
        match part:
            case Text():
                said.append(["text", part.text])
            case Refusal():
                said.append(["refusal", part.text])
            case Reasoning():
                # Several parts of one item are joined with a line break.
                thought += part.text.replace("\n", "")
                summary += "".join(part.summary)
                blobs += [(blob.minted_by, blob.data) for blob in part.opaque]
            case Opaque():
                blobs.append((part.minted_by, part.data))
            case ToolCall():
                said.append([part.call_id, part.name, part.arguments, part.custom])
    merged: list[Any] = []
    for entry in said:
        if merged and len(entry) == 2 and merged[-1][0] == entry[0]:
            merged[-1] = [entry[0], merged[-1][1] + entry[1]]
        elif entry[1]:
            merged.append(entry)
    return [merged, thought, summary, blobs]
