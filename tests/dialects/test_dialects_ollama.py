"""Ollama's API: what is carried, lost and refused, and what the official SDK makes of answers, errors and listings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import ollama
import pytest
from dialects_canned_server import CannedServer, canned_server
from dialects_shapes import events_of, shape_of
from hypothesis import given
from hypothesis import strategies as st

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.ollama import OllamaChat
from extproc.dialects.ollama_answer import OllamaStream, OllamaWhole
from extproc.dialects.ollama_errors import error_answer
from extproc.dialects.ollama_models import OllamaModels
from extproc.dialects.registry import all_dialects
from extproc.dialects.routes import Routes
from extproc.ir import (
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    ModelCard,
    Operation,
    ReasoningDelta,
    RequestError,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

CASES = Path(__file__).parent / "cases" / "ollama"
REQUESTS = json.loads((CASES / "requests.json").read_text())
REFUSED = json.loads((CASES / "refused.json").read_text())
STREAMS = json.loads((CASES / "streams.json").read_text())
MINIMAL = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LIMITS = BodyLimits(max_depth=8, max_messages=50, max_option_bytes=10_000)
DIALECT = OllamaChat(LIMITS)
IDENTITY = AnswerIdentity("id-1", 1_700_000_000, 'a "model"', 11)
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=8, reasoning_tokens=2)
ENDING = {
    "done": True,
    "total_duration": 2,
    "load_duration": 0,
    "prompt_eval_count": 11,
    "prompt_eval_duration": 1,
    "eval_count": 5,
    "eval_duration": 1,
}
CARDS = [ModelCard("org/a", 1_700_000_000, context_tokens=4096), ModelCard("b", 1_700_000_000)]


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: CannedServer) -> ollama.Client:
    return ollama.Client(host=server.url)


def inbound_of(body: Any) -> Inbound:
    return Inbound("POST", "/api/generate" if isinstance(body, dict) and "prompt" in body else "/api/chat", "", {})


def parse(case: dict[str, Any]) -> ChatRequest:
    body = case.get("body", {**MINIMAL, **case.get("set", {})})
    raw = case["raw"].encode() if "raw" in case else json.dumps(body).encode()
    return DIALECT.parse(inbound_of(body), raw)


def clock() -> Callable[[], int]:
    return count().__next__


def render(batches: list[list[Event]], *, asked: ChatRequest | None = None, chat: bool = True) -> list[Any]:
    """The objects of a stream; checks that the stream holds nothing else."""
    renderer = OllamaStream(asked or parse({}), IDENTITY, chat=chat, clock=clock())
    stream = b"".join([renderer.start(), *map(renderer.events, batches), renderer.end(USAGE)])
    *lines, rest = stream.split(b"\n")
    assert rest == b""
    return list(map(json.loads, lines))


def whole(batches: list[list[Event]], *, asked: ChatRequest | None = None, chat: bool = True) -> Any:
    renderer = OllamaWhole(asked or parse({}), IDENTITY, chat=chat, clock=clock())
    for batch in batches:
        renderer.events(batch)
    return json.loads(renderer.end(USAGE))


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
    rendered = error_answer(info, inbound_of({}))
    assert rendered.status == 400
    [(name, message)] = json.loads(rendered.body).items()
    assert name == "error"
    assert (info.param or "") in message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "images", "tool_calls", "function", "name", "arguments", "id"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(["messages", "tools", "format", "think", "options", "keep_alive"]), VALUES)
def test_any_value_of_a_field_is_taken_or_refused_with_its_place(name: str, value: Any) -> None:
    info = None
    try:
        parse({"set": {name: value}})
    except RequestError as error:
        info = error.info
    assert info is None or info.kind in (ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED)
    assert info is None or (info.param or "").startswith(name)


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_a_stream_is_a_line_for_each_part_and_the_end_with_its_counts(case: dict[str, Any]) -> None:
    asked = parse({"set": {"think": case.get("think")}})
    lines = render([events_of(batch) for batch in case["events"]], asked=asked)
    messages = [line.pop("message") for line in lines]
    assert {(line.pop("model"), line.pop("created_at")) for line in lines} == {('a "model"', "2023-11-14T22:13:20Z")}
    assert {message.pop("role") for message in messages} == {"assistant"}
    assert messages == case["lines"]
    assert lines[-1] == {"done_reason": case["reason"], **ENDING}
    assert lines[:-1] == [{"done": False}] * (len(lines) - 1)


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_an_answer_given_whole_says_the_same(case: dict[str, Any]) -> None:
    asked = parse({"set": {"think": case.get("think")}})
    body = whole([events_of(batch) for batch in case["events"]], asked=asked)
    assert body.pop("message") == {"role": "assistant", **case["message"]}
    assert (body.pop("model"), body.pop("created_at")) == ('a "model"', "2023-11-14T22:13:20Z")
    assert body == {"done_reason": case["reason"], **ENDING}


def test_a_prompt_gets_a_response_in_place_of_a_message() -> None:
    events: list[Event] = [ReasoningDelta(0, "Hm"), TextDelta(0, "a"), TextDelta(0, "b"), Finish(0, FinishReason.STOP)]
    lines = list(map(ollama.GenerateResponse.model_validate, render([events], chat=False)))
    assert "".join([line.response for line in lines]) == "ab"
    assert "".join([line.thinking or "" for line in lines]) == "Hm"
    full = ollama.GenerateResponse.model_validate(whole([events], chat=False))
    assert (full.response, full.thinking, full.done_reason, full.eval_count) == ("ab", "Hm", "stop", 5)


def test_log_probabilities_come_with_their_tokens() -> None:
    token = TokenLogprob("ü".encode(), -0.5, (TokenLogprob(b"a", float("-inf")),))
    events: list[Event] = [TextDelta(0, "ü", [token]), Finish(0, FinishReason.STOP)]
    for chat in (True, False):
        for body in (render([events], chat=chat)[0], whole([events], chat=chat)):
            [entry] = body["logprobs"]
            assert (entry["token"], entry["logprob"], entry["bytes"]) == ("ü", -0.5, [195, 188])
            assert entry["top_logprobs"] == [{"token": "a", "logprob": -9999.0, "bytes": [97]}]


def test_the_sdk_reads_a_stream_over_http_signs_of_life_included(client: ollama.Client, server: CannedServer) -> None:
    renderer = DIALECT.stream(parse({}), IDENTITY)
    body = renderer.start() + renderer.keep_alive
    body += renderer.events([TextDelta(0, "a"), ToolCallStart(0, 0, "c", "f"), ToolCallEnd(0, 0, '{"x": 1}')])
    body += renderer.keep_alive + renderer.events([Finish(0, FinishReason.TOOL_CALLS)]) + renderer.end(USAGE)
    server.will_answer(200, (("content-type", renderer.content_type),), body)
    parts = list(client.chat("m", [{"role": "user", "content": "a"}], stream=True))
    assert "".join([part.message.content or "" for part in parts]) == "a"
    [call] = [call for part in parts for call in part.message.tool_calls or ()]
    assert (call.function.name, call.function.arguments) == ("f", {"x": 1})
    assert (parts[-1].done, parts[-1].prompt_eval_count, parts[-1].eval_count) == (True, 11, 5)
    assert (parts[-1].total_duration or 0) > 0


ABORTED: list[Event] = [TextDelta(0, "a"), Finish(0, FinishReason.ABORT)]


@pytest.mark.parametrize("kind", ["aborted", "unfinished", "error"])
def test_a_stream_that_breaks_off_ends_with_an_error_on_which_the_sdk_raises(
    client: ollama.Client, server: CannedServer, kind: str
) -> None:
    error = ErrorInfo(kind=ErrorKind.UNAVAILABLE, message="no worker")
    renderer = DIALECT.stream(parse({}), IDENTITY)
    match kind:
        case "aborted":
            body, says = renderer.events(ABORTED), "gave the request up"
        case "unfinished":
            body, says = renderer.events([TextDelta(0, "a")]) + renderer.end(Usage()), "broke off"
        case _:
            body, says = renderer.error(error), "no worker"
    # Nothing follows.
    assert renderer.events([TextDelta(0, "b")]) + renderer.end(Usage()) + renderer.error(error) == b""
    server.will_answer(200, (("content-type", renderer.content_type),), body)
    with pytest.raises(ollama.ResponseError, match=says):
        list(client.chat("m", [{"role": "user", "content": "a"}], stream=True))


@pytest.mark.parametrize("events", [ABORTED, [TextDelta(0, "a")]])
def test_an_incomplete_answer_is_never_given_whole(events: list[Event]) -> None:
    renderer = DIALECT.whole(parse({}), IDENTITY)
    renderer.events(events)
    with pytest.raises(RequestError):
        renderer.end(Usage())


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
EVENTS = st.lists(
    st.builds(TextDelta, st.just(0), TEXTS)
    | st.builds(ReasoningDelta, st.just(0), TEXTS)
    | st.dictionaries(TEXTS, st.integers(), max_size=2).map(lambda arguments: ToolCallEnd(0, 0, json.dumps(arguments))),
    max_size=9,
)


def with_starts(events: list[Event]) -> list[Event]:
    result: list[Event] = []
    for event in events:
        if isinstance(event, ToolCallEnd):
            result.append(ToolCallStart(0, 0, "c", "f"))
        result.append(event)
    return [*result, Finish(0, FinishReason.STOP)]


@given(EVENTS, st.lists(st.integers(0, 30), max_size=5))
def test_the_sdk_accepts_any_answer_however_it_is_batched_and_reads_it_as_the_one_given_whole(
    given_events: list[Event], cuts: list[int]
) -> None:
    events = with_starts(given_events)
    borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    batches = [events[begin:end] for begin, end in pairwise(borders)]
    lines = render(batches)
    assert lines == render([events])
    parts = list(map(ollama.ChatResponse.model_validate, lines))
    full = ollama.ChatResponse.model_validate(whole(batches))
    assert "".join([part.message.content or "" for part in parts]) == full.message.content
    assert "".join([part.message.thinking or "" for part in parts]) == (full.message.thinking or "")
    assert [call for part in parts for call in part.message.tool_calls or ()] == list(full.message.tool_calls or ())


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_error_has_a_status_that_the_sdk_tells(
    kind: ErrorKind, client: ollama.Client, server: CannedServer
) -> None:
    rendered = error_answer(ErrorInfo(kind=kind, message="no", param="a", retry_after_s=2), inbound_of({}))
    assert ("retry-after", "2") in rendered.headers or rendered.status not in (429, 503)
    server.will_answer(rendered.status, rendered.headers, rendered.body)
    with pytest.raises(ollama.ResponseError) as raised:
        client.chat("m", [{"role": "user", "content": "a"}])
    assert (raised.value.status_code, raised.value.error) == (rendered.status, "a: no")
    assert rendered.status >= 400


def test_the_sdk_reads_the_listings(client: ollama.Client, server: CannedServer) -> None:
    models = OllamaModels()

    def answers(path: str) -> None:
        rendered = models.list(Inbound("GET", path, "", {}), CARDS)
        server.will_answer(rendered.status, rendered.headers, rendered.body)

    answers("/api/tags")
    listed = client.list().models
    assert [model.model for model in listed] == ["org/a", "b"]
    assert listed[0].modified_at is not None
    assert listed[0].modified_at.timestamp() == 1_700_000_000
    answers("/api/ps")
    assert [model.name for model in client.ps().models] == ["org/a", "b"]
    version = json.loads(models.list(Inbound("GET", "/api/version", "", {}), CARDS).body)
    assert list(version) == ["version"]
    rendered = models.get(Inbound("POST", "/api/show", "", {}), CARDS[0])
    server.will_answer(rendered.status, rendered.headers, rendered.body)
    shown = client.show("org/a")
    assert shown.capabilities == ["completion"]
    assert (shown.modelinfo or {})["llm.context_length"] == 4096


def test_the_model_to_show_goes_by_either_name() -> None:
    inbound = Inbound("POST", "/api/show", "", {})
    assert [OllamaModels().name(inbound, body) for body in (b'{"model":"a"}', b'{"name":"b"}')] == ["a", "b"]
    with pytest.raises(RequestError):
        OllamaModels().name(inbound, b"{}")


@pytest.mark.parametrize(
    ("request_line", "operation"),
    [
        ("POST /api/chat", Operation.GENERATE),
        ("POST /api/generate", Operation.GENERATE),
        ("GET /api/tags", Operation.LIST_MODELS),
        ("GET /api/ps", Operation.LIST_MODELS),
        ("GET /api/version", Operation.LIST_MODELS),
        ("POST /api/show", Operation.GET_MODEL),
        ("POST /api/pull", None),
        ("GET /api/chat", None),
    ],
)
def test_requests_are_told_by_their_paths(request_line: str, operation: Operation | None) -> None:
    route = Routes(all_dialects(LIMITS)).find(*request_line.split(" "), {})
    assert (route.dialect.name, route.operation) == ("ollama", operation)


def test_arguments_that_were_no_object_come_back_as_they_were() -> None:
    call = {"function": {"name": "f", "arguments": {"INVALID_JSON": '{"city": "Par'}}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_name": "f", "content": "r"}]
    (part,) = parse({"set": {"messages": messages}}).turns[0].parts
    assert isinstance(part, ToolCall)
    assert part.arguments == '{"city": "Par'
