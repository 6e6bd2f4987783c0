"""Messages answers: the rules of the stream, the whole body, and what the official SDK makes of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from dialects_canned_server import CannedServer, canned_server
from dialects_shapes import events_of, usage_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from extproc.dialects.anthropic import AnthropicMessages
from extproc.dialects.anthropic_answer import PING
from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
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
    RefusalDelta,
    RequestError,
    Text,
    TextDelta,
    ToolArgsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

STREAMS = json.loads((Path(__file__).parent / "cases" / "anthropic" / "streams.json").read_text())
DIALECT = AnthropicMessages(BodyLimits())
IDENTITY = AnswerIdentity("msg_1", 1_700_000_000, 'a "model"', 11)
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "cached_tokens": 8}
START = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": 'a "model"',
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 0},
}
STRICT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: CannedServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def request(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "a"}], **fields}
    return DIALECT.parse(Inbound("POST", "/v1/messages", "", {"x-request-id": "req"}), json.dumps(body).encode())


def render(asked: ChatRequest, batches: list[list[Event]], usage: Usage) -> bytes:
    renderer = DIALECT.stream(asked, IDENTITY)
    return b"".join([renderer.start(), *map(renderer.events, batches), renderer.end(usage)])


def whole(asked: ChatRequest, batches: list[list[Event]], usage: Usage) -> bytes:
    renderer = DIALECT.whole(asked, IDENTITY)
    for batch in batches:
        renderer.events(batch)
    return renderer.end(usage)


def parsed(stream: bytes) -> list[tuple[str, Any]]:
    """Name and data of each event, without the type; checks that the stream holds nothing else."""
    *blocks, rest = stream.split(b"\n\n")
    assert rest == b""
    events = []
    for block in blocks:
        named, data = block.split(b"\n")
        name = named.removeprefix(b"event: ").decode()
        value = json.loads(data.removeprefix(b"data: "))
        assert value.pop("type") == name
        events.append((name, value))
    return events


def accumulated(stream: bytes) -> Message:
    """What the SDK's accumulator makes of a stream whose every event is valid by the SDK's types."""
    snapshot = None
    buffers: dict[int, bytes] = {}
    for name, value in parsed(stream):
        if name != "ping":
            event = STRICT.validate_python({"type": name, **value})
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return snapshot


def plain(message: Message) -> dict[str, Any]:
    return json.loads(message.to_json(exclude_none=True))


def batches_of(case: dict[str, Any]) -> list[list[Event]]:
    return [events_of(batch) for batch in case["events"]]


@pytest.mark.parametrize("case", [case for case in STREAMS if "stream" in case], ids=lambda case: case["name"])
def test_a_stream_is_the_messages_start_its_blocks_and_its_end(case: dict[str, Any]) -> None:
    stream = render(request(**case.get("set", {})), batches_of(case), usage_of(case.get("usage", USAGE)))
    assert PING in stream
    expected = [("message_start", {"message": START}), ("ping", {}), *map(tuple, case["stream"])]
    assert parsed(stream) == expected


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_the_sdk_accumulates_the_stream_to_the_message(case: dict[str, Any]) -> None:
    stream = render(request(**case.get("set", {})), batches_of(case), usage_of(case.get("usage", USAGE)))
    message = plain(accumulated(stream))
    assert message["content"] == case["content"]
    assert ending_of(message) == without_nones(case["ending"])


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_an_answer_given_whole_says_the_same(case: dict[str, Any]) -> None:
    body = json.loads(whole(request(**case.get("set", {})), batches_of(case), usage_of(case.get("usage", USAGE))))
    assert body["content"] == case.get("whole", case["content"])
    assert (body["stop_reason"], body["stop_sequence"]) == (
        case["ending"]["stop_reason"],
        case["ending"].get("stop_sequence"),
    )
    message = plain(Message.model_validate(body))
    assert ending_of(message) == without_nones(case["ending"])
    assert message["usage"]["output_tokens"] == 5


def ending_of(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details") if name in message}


def without_nones(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: without_nones(held) if isinstance(held, dict) else held
        for name, held in value.items()
        if held is not None
    }


def test_cached_tokens_are_not_counted_as_input(client: anthropic.Anthropic, server: CannedServer) -> None:
    body = whole(request(), [[TextDelta(0, "a"), Finish(0, FinishReason.STOP)]], usage_of(USAGE))
    server.will_answer(200, (("content-type", "application/json"), ("request-id", "r7")), body)
    message = client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}])
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 8, 5)
    assert message._request_id == "r7"


def test_the_sdk_reads_a_stream_over_http(client: anthropic.Anthropic, server: CannedServer) -> None:
    case = next(case for case in STREAMS if "calls at once" in case["name"])
    body = render(request(), batches_of(case), usage_of(case["usage"]))
    server.will_answer(200, (("content-type", "text/event-stream"),), body)
    with client.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}]) as stream:
        names = [event.type for event in stream]
        message = stream.get_final_message()
    assert plain(message)["content"] == case["content"]
    assert {"thinking", "signature", "text", "input_json"} <= set(names)
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens == 2


ABORTED = [TextDelta(0, "a"), Finish(0, FinishReason.ABORT)]


@pytest.mark.parametrize(
    ("break_off", "kind", "says"),
    [
        (lambda renderer: renderer.events(ABORTED), "api_error", "gave the request up"),
        (lambda renderer: renderer.events([TextDelta(0, "a")]) + renderer.end(Usage()), "api_error", "broke off"),
        (
            lambda renderer: renderer.error(ErrorInfo(kind=ErrorKind.UNAVAILABLE, message="no worker")),
            "overloaded_error",
            "no worker",
        ),
    ],
    ids=["an engine that gives up", "an answer without an end", "an error"],
)
def test_a_stream_that_breaks_off_ends_with_an_error_on_which_the_sdk_raises(
    client: anthropic.Anthropic, server: CannedServer, break_off: Callable[[Any], bytes], kind: str, says: str
) -> None:
    renderer = DIALECT.stream(request(), IDENTITY)
    body = renderer.start() + break_off(renderer)
    # Nothing follows.
    assert renderer.events([TextDelta(0, "b")]) + renderer.end(Usage()) + renderer.error(_ERROR) == b""
    name, data = parsed(body)[-1]
    assert (name, data["request_id"], data["error"]["type"]) == ("error", "req", kind)
    server.will_answer(200, (("content-type", "text/event-stream"),), body)
    with (
        client.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "a"}]) as stream,
        pytest.raises(anthropic.APIStatusError, match=says),
    ):
        stream.get_final_message()


_ERROR = ErrorInfo(kind=ErrorKind.SERVER, message="late")


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
    st.sampled_from(["signature", "redacted", "encrypted"]),
    st.from_regex(r"\A[A-Za-z0-9+/]{1,12}\Z"),
    st.none() | st.just("rs_1"),
)
ARGUMENTS = st.dictionaries(WORDS, st.integers() | WORDS | st.lists(st.booleans(), max_size=2), max_size=3)
PARTS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.lists(WORDS, min_size=1, max_size=4)),
        st.tuples(st.just("refusal"), st.lists(WORDS, min_size=1, max_size=4)),
        st.tuples(st.just("reasoning"), st.lists(WORDS, min_size=1, max_size=4)),
        st.tuples(st.just("summary"), st.lists(WORDS, min_size=1, max_size=4)),
        st.tuples(st.just("opaque"), BLOBS),
        st.tuples(st.just("call"), ARGUMENTS, st.integers(1, 5)),
    ),
    max_size=7,
)
REASONS = st.sampled_from([reason for reason in FinishReason if reason is not FinishReason.ABORT])


def events_of_parts(parts: list[Any], reason: FinishReason) -> list[Event]:
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
            case "call":
                arguments = json.dumps(rest[0], ensure_ascii=False)
                size = -(-len(arguments) // rest[1])
                events.append(ToolCallStart(0, calls, f"toolu_{calls}", "tool"))
                events += [ToolArgsDelta(0, calls, arguments[at : at + size]) for at in range(0, len(arguments), size)]
                events.append(ToolCallEnd(0, calls, arguments))
                calls += 1
    return [*events, Finish(0, reason)]


@settings(max_examples=40)  # the SDK's types are large
@given(PARTS, REASONS, st.sampled_from(["summarized", "omitted"]))
def test_the_sdk_accepts_any_answer_and_reads_it_as_the_one_given_whole(
    parts: list[Any], reason: FinishReason, display: str
) -> None:
    asked = request(thinking={"type": "adaptive", "display": display})
    events = events_of_parts(parts, reason)
    usage = usage_of(USAGE)
    message = accumulated(render(asked, [events], usage))
    assert plain(message) == plain(Message.model_validate_json(whole(asked, [events], usage)))


@given(PARTS, st.lists(st.integers(0, 30), max_size=5))
def test_the_bytes_do_not_depend_on_how_events_are_batched(parts: list[Any], cuts: list[int]) -> None:
    events = events_of_parts(parts, FinishReason.STOP)
    borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    batches = [events[begin:end] for begin, end in pairwise(borders)]
    usage = usage_of(USAGE)
    assert render(request(), batches, usage) == render(request(), [events], usage)


@settings(max_examples=40)
@given(PARTS, st.sampled_from(["summarized", "omitted"]))
def test_an_answer_that_comes_back_is_what_it_was(parts: list[Any], display: str) -> None:
    events = events_of_parts([part for part in parts if part[0] != "refusal"], FinishReason.STOP)
    asked = request(thinking={"type": "adaptive", "display": display})
    answer = accumulated(render(asked, [events], usage_of(USAGE)))
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
        {"role": "user", "content": "b"},
    ]
    _, turn, _ = request(messages=messages).turns
    assert joined(turn.parts) == joined(said(events))


def said(events: list[Event]) -> list[Any]:
    """The parts that the events tell of."""
    parts: list[Any] = []
    last: Any = None
    for event in events:
        match event:
            case TextDelta():
                parts.append(Text(event.text))
            case ReasoningDelta():
                parts.append(Reasoning(event.text))
            case OpaqueDelta():
                parts.append(event.opaque)
            case ToolCallEnd():
                parts.append(ToolCall(call_id=f"toolu_{event.index}", name="tool", arguments=event.arguments))
        last = event
    assert type(last) is Finish
    return parts


def joined(parts: Any) -> list[Any]:
    """Texts, thoughts, blobs and calls in their order; how texts and thoughts are divided does not matter."""
    flat: list[Any] = []
    for part in parts:
        match part:
            case Text():
                flat.append(["text", part.text])
            case Reasoning():
                flat.append(["thought", part.text])
                flat += [["blob", blob.minted_by, blob.data] for blob in part.opaque]
            case Opaque():
                flat.append(["blob", part.minted_by, part.data])
            case ToolCall():
                flat.append(["call", part.call_id, part.name, json.loads(part.arguments)])
    merged: list[Any] = []
    for entry in flat:
        if entry[0] in ("text", "thought") and not entry[1]:
            continue
        if merged and entry[0] in ("text", "thought") and merged[-1][0] == entry[0]:
            merged[-1] = [entry[0], merged[-1][1] + entry[1]]
        else:
            merged.append(entry)
    return merged
