"""Interactions: what is carried, lost and refused, and what the official SDK makes of its events and bodies."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dialects_canned_server import CannedServer, canned_server
from dialects_shapes import events_of, shape_of
from google import genai
from google.genai import interactions, types
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.gemini_errors import error_answer
from extproc.dialects.gemini_interactions import GeminiInteractions
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import (
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    Operation,
    ReasoningDelta,
    RefusalDelta,
    RequestError,
    TextDelta,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

CASES = Path(__file__).parent / "cases" / "interactions"
REQUESTS = json.loads((CASES / "requests.json").read_text())
REFUSED = json.loads((CASES / "refused.json").read_text())
STREAMS = json.loads((CASES / "streams.json").read_text())
MINIMAL = {"model": "m", "input": "hello"}
LIMITS = BodyLimits(max_depth=8, max_messages=50, max_option_bytes=10_000)
DIALECT = GeminiInteractions(LIMITS)
INBOUND = Inbound("POST", "/v1/interactions", "", {})
IDENTITY = AnswerIdentity("id-1", 1_700_000_000, 'a "model"', 11)
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=8, reasoning_tokens=2)
COUNTS = {
    "total_input_tokens": 11,
    "total_cached_tokens": 8,
    "total_output_tokens": 3,
    "total_thought_tokens": 2,
    "total_tool_use_tokens": 0,
    "total_tokens": 16,
}


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: CannedServer) -> genai.Client:
    return genai.Client(api_key="x", http_options=types.HttpOptions(base_url=server.url))


def parse(case: dict[str, Any]) -> ChatRequest:
    body = case.get("body", {**MINIMAL, **case.get("set", {})})
    if "tool" in case:
        body["tools"] = [{"type": "function", "name": case["tool"]}]
    return DIALECT.parse(INBOUND, case["raw"].encode() if "raw" in case else json.dumps(body).encode())


def asked(shows: bool) -> ChatRequest:
    return parse({"set": {"generation_config": {"thinking_summaries": "auto" if shows else "none"}}})


def render(request: ChatRequest, batches: list[list[Event]]) -> bytes:
    renderer = DIALECT.stream(request, IDENTITY)
    return b"".join([renderer.start(), *map(renderer.events, batches), renderer.end(USAGE)])


def whole(request: ChatRequest, batches: list[list[Event]]) -> Any:
    renderer = DIALECT.whole(request, IDENTITY)
    for batch in batches:
        renderer.events(batch)
    return json.loads(renderer.end(USAGE))


def parsed(stream: bytes) -> list[Any]:
    """The data of each event; checks its name, and that the stream holds nothing else."""
    *blocks, rest = stream.split(b"\n\n")
    assert rest == b""
    events = []
    for block in blocks:
        named, data = block.split(b"\n")
        name = named.removeprefix(b"event: ").decode()
        if name == "done":
            assert (data, block) == (b"data: [DONE]", blocks[-1])
        else:
            events.append(json.loads(data.removeprefix(b"data: ")))
            assert events[-1]["event_type"] == name
    return events


def accumulated(events: list[Any]) -> list[dict[str, Any]]:
    """The steps that a client puts together, by the rules of the SDK's types; checks the order of the events."""
    steps: list[dict[str, Any]] = []
    arguments = ""
    is_open = False
    for event in events:
        match event["event_type"]:
            case "step.start":
                assert (is_open, event["index"]) == (False, len(steps))
                is_open = True
                steps.append(event["step"])
                arguments = ""
            case "step.delta":
                assert (is_open, event["index"]) == (True, len(steps) - 1)
                delta, step = event["delta"], steps[-1]
                match delta["type"]:
                    case "text":
                        step.setdefault("content", [{"type": "text", "text": ""}])[0]["text"] += delta["text"]
                    case "thought_summary":
                        said = step.setdefault("summary", [{"type": "text", "text": ""}])
                        said[0]["text"] += delta["content"]["text"]
                    case "thought_signature":
                        step["signature"] = delta["signature"]
                    case "arguments_delta":
                        arguments += delta["arguments"]
            case "step.stop":
                assert (is_open, event["index"]) == (True, len(steps) - 1)
                is_open = False
                if steps[-1]["type"] == "function_call":
                    steps[-1]["arguments"] = json.loads(arguments or "{}")
    assert not is_open
    return steps


def written(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As case files write them: a signature of ours as it is within its base64."""
    shown = []
    for step in steps:
        decoded = base64.b64decode(step.get("signature", ""))
        shown.append(step | {"signature": decoded.decode()} if decoded.startswith(b"llm-extproc:") else step)
    return shown


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_what_is_asked_for_arrives(case: dict[str, Any]) -> None:
    request = parse(case)
    expected = {"model": "m", "turns": [["user", "hello"]], **case["ir"]}
    assert json.loads(json.dumps(shape_of(request))) == expected
    assert all(loss.reason for loss in request.losses)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"])
def test_a_mistake_is_named_with_its_place_and_what_is_allowed(case: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        parse(case)
    info = caught.value.info
    assert info.param == case["param"]
    assert case.get("says", "") in info.message
    error = json.loads(error_answer(info, INBOUND).body)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just("text"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "text", "content", "call_id", "id", "name", "schema"]), inner)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["input", "tools", "response_format", "generation_config", "store"]), VALUES)
def test_any_value_of_a_field_is_taken_or_refused_with_its_place(name: str, value: Any) -> None:
    info = None
    try:
        parse({"set": {name: value}})
    except RequestError as error:
        info = error.info
    assert info is None or info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)
    assert info is None or (info.param or "").startswith(name)


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_a_stream_puts_its_steps_together_between_its_beginning_and_its_end(case: dict[str, Any]) -> None:
    first, second, *steps, last = parsed(
        render(asked(case.get("shows", False)), [events_of(batch) for batch in case["events"]])
    )
    assert (first["event_type"], first["interaction"]["status"]) == ("interaction.created", "in_progress")
    assert (second["event_type"], second["interaction_id"]) == ("interaction.status_update", "id-1")
    assert written(accumulated(steps)) == case["steps"]
    assert last["event_type"] == "interaction.completed"
    assert last["interaction"] == first["interaction"] | {"status": case["status"], "usage": COUNTS}


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_an_interaction_given_whole_says_the_same(case: dict[str, Any]) -> None:
    body = whole(asked(case.get("shows", False)), [events_of(batch) for batch in case["events"]])
    assert written(body.pop("steps")) == case["steps"]
    assert (body["status"], body["usage"], body["model"], body["id"]) == (case["status"], COUNTS, 'a "model"', "id-1")


def test_every_reason_to_end_has_a_case() -> None:
    ends = {event[1] for case in STREAMS for batch in case["events"] for event in batch if event[0] == "finish"}
    assert ends == {reason.value for reason in FinishReason if reason is not FinishReason.ABORT}


def test_the_sdk_reads_a_stream_over_http_signs_of_life_included(client: genai.Client, server: CannedServer) -> None:
    case = next(case for case in STREAMS if "text and calls" in case["name"])
    renderer = DIALECT.stream(asked(True), IDENTITY)
    body = renderer.start() + renderer.keep_alive
    for batch in case["events"]:
        body += renderer.events(events_of(batch)) + renderer.keep_alive
    body += renderer.end(USAGE)
    server.will_answer(200, (("content-type", renderer.content_type),), body)
    events = list(client.interactions.create(model="m", input="a", stream=True))
    assert [event.event_type for event in events] == [event["event_type"] for event in parsed(render_of(case))]
    assert not any(getattr(event, "is_unknown", False) for event in events)
    last = events[-1]
    assert isinstance(last, interactions.InteractionCompletedEvent)
    assert last.interaction.status == "requires_action"
    assert last.interaction.usage is not None
    assert last.interaction.usage.total_thought_tokens == 2


def render_of(case: dict[str, Any]) -> bytes:
    return render(asked(case.get("shows", False)), [events_of(batch) for batch in case["events"]])


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_the_sdk_reads_an_interaction_given_whole_and_sends_it_back(
    case: dict[str, Any], client: genai.Client, server: CannedServer
) -> None:
    body = whole(asked(case.get("shows", False)), [events_of(batch) for batch in case["events"]])
    server.will_answer(200, (("content-type", "application/json"),), json.dumps(body).encode())
    interaction = client.interactions.create(model="m", input="a")
    steps = [step.model_dump(exclude_none=True) for step in interaction.steps or ()]
    assert written(steps) == case["steps"]
    results = [
        {"type": "function_result", "call_id": step["id"], "result": "x"}
        for step in steps
        if step["type"] == "function_call"
    ]
    again = [{"type": "text", "text": "a"}, *steps, *results, {"type": "text", "text": "b"}]
    turns = parse({"set": {"input": again}}).turns
    texts = "".join([turn.text for turn in turns if turn.role == "assistant"])
    assert texts == "".join([each["text"] for step in case["steps"] for each in step.get("content", ())])


ABORTED: list[Event] = [TextDelta(0, "a"), Finish(0, FinishReason.ABORT)]


@pytest.mark.parametrize("kind", ["aborted", "unfinished", "error"])
def test_a_stream_that_breaks_off_ends_with_an_error(kind: str, client: genai.Client, server: CannedServer) -> None:
    error = ErrorInfo(kind=ErrorKind.UNAVAILABLE, message="no worker")
    renderer = DIALECT.stream(asked(False), IDENTITY)
    body = renderer.start()
    match kind:
        case "aborted":
            body += renderer.events(ABORTED)
        case "unfinished":
            body += renderer.events([TextDelta(0, "a")]) + renderer.end(Usage())
        case _:
            body += renderer.error(error)
    # Nothing follows.
    assert renderer.events([TextDelta(0, "b")]) + renderer.end(Usage()) + renderer.error(error) == b""
    server.will_answer(200, (("content-type", renderer.content_type),), body)
    last = list(client.interactions.create(model="m", input="a", stream=True))[-1]
    assert isinstance(last, interactions.ErrorEvent)
    assert last.error is not None
    assert (last.error.code, bool(last.error.message)) == ("UNAVAILABLE", True)


@pytest.mark.parametrize("events", [ABORTED, [TextDelta(0, "a")]])
def test_an_incomplete_answer_is_never_given_whole(events: list[Event]) -> None:
    renderer = DIALECT.whole(asked(False), IDENTITY)
    renderer.events(events)
    with pytest.raises(RequestError):
        renderer.end(Usage())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
EVENTS = st.lists(
    st.builds(TextDelta, st.just(0), TEXTS)
    | st.builds(RefusalDelta, st.just(0), TEXTS)
    | st.builds(ReasoningDelta, st.just(0), TEXTS)
    | st.dictionaries(TEXTS, st.integers(), max_size=2).map(lambda arguments: ToolCallEnd(0, 0, json.dumps(arguments))),
    max_size=9,
)


def with_starts(events: list[Event]) -> list[Event]:
    result: list[Event] = []
    for event in events:
        if isinstance(event, ToolCallEnd):
            half = len(event.arguments) // 2
            result += [
                ToolCallStart(0, 0, "c", "f"),
                ToolArgsDelta(0, 0, event.arguments[:half]),
                ToolArgsDelta(0, 0, event.arguments[half:]),
            ]
        result.append(event)
    return [*result, Finish(0, FinishReason.STOP)]


@settings(max_examples=60)
@given(EVENTS, st.lists(st.integers(0, 40), max_size=5), st.booleans())
def test_any_answer_however_it_is_batched_is_the_one_given_whole(
    given_events: list[Event], cuts: list[int], shows: bool
) -> None:
    events = with_starts(given_events)
    borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    batches = [events[begin:end] for begin, end in pairwise(borders)]
    stream = render(asked(shows), batches)
    assert stream == render(asked(shows), [events])
    full = whole(asked(shows), batches)
    assert accumulated(parsed(stream)) == full["steps"]
    read = interactions.Interaction.model_validate(full)
    assert not any(getattr(step, "is_unknown", False) for step in read.steps or ())


@pytest.mark.parametrize(
    ("request_line", "operation"),
    [
        ("POST /v1/interactions", Operation.GENERATE),
        ("POST /v1beta/interactions", Operation.GENERATE),
        ("GET /v1/interactions/x", None),
        ("POST /v1/interactions/x/cancel", None),
    ],
)
def test_requests_are_told_by_their_paths(request_line: str, operation: Operation | None) -> None:
    route = Routes(all_dialects(LIMITS)).find(*request_line.split(" "), {})
    assert (route.dialect.name, route.operation) == ("gemini_interactions", operation)
