"""Gemini answers: the rules of the stream, the whole body, and what the official SDK makes of both."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dialects_canned_server import CannedServer, canned_server
from dialects_shapes import events_of
from google import genai
from google.genai import errors, types
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.gemini import GeminiGenerate
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
    TokenLogprob,
    ToolArgsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

STREAMS = json.loads((Path(__file__).parent / "cases" / "gemini" / "streams.json").read_text())
DIALECT = GeminiGenerate(BodyLimits())
IDENTITY = AnswerIdentity("id-1", 1_700_000_000, 'a "model"', 11)
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=8, reasoning_tokens=2)
COUNTS = {
    "promptTokenCount": 11,
    "candidatesTokenCount": 3,
    "thoughtsTokenCount": 2,
    "cachedContentTokenCount": 8,
    "totalTokenCount": 16,
}
USER = {"role": "user", "parts": [{"text": "a"}]}
SSE = "alt=sse"


@pytest.fixture(scope="module")
def server() -> Iterator[CannedServer]:
    with canned_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: CannedServer) -> genai.Client:
    return genai.Client(api_key="x", http_options=types.HttpOptions(base_url=server.url))


def request(shows: bool = False, query: str = SSE, contents: Any = None, **generation: Any) -> ChatRequest:
    body = {
        "contents": contents or [USER],
        "generationConfig": {"thinkingConfig": {"includeThoughts": shows}, **generation},
    }
    inbound = Inbound("POST", "/v1/models/m:streamGenerateContent", query, {}, "m")
    return DIALECT.parse(inbound, json.dumps(body).encode())


def render(asked: ChatRequest, batches: list[list[Event]], usage: Usage = USAGE) -> bytes:
    renderer = DIALECT.stream(asked, IDENTITY)
    return b"".join([renderer.start(), *map(renderer.events, batches), renderer.end(usage)])


def whole(asked: ChatRequest, batches: list[list[Event]], usage: Usage = USAGE) -> bytes:
    renderer = DIALECT.whole(asked, IDENTITY)
    for batch in batches:
        renderer.events(batch)
    return renderer.end(usage)


def pieces_of(stream: bytes) -> list[Any]:
    """The objects of a stream of events; checks that the stream holds nothing else."""
    *events, rest = stream.split(b"\n\n")
    assert rest == b""
    assert all(event.startswith(b"data: {") for event in events)
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def written(parts: list[Any]) -> list[Any]:
    """Parts as case files write them: a signature of ours as it is within its base64."""
    shown = []
    for part in parts:
        signature = part.get("thoughtSignature", "")
        decoded = base64.b64decode(signature)
        shown.append(part | {"thoughtSignature": decoded.decode()} if decoded.startswith(b"llm-extproc:") else part)
    return shown


def batches_of(case: dict[str, Any]) -> list[list[Event]]:
    return [events_of(batch) for batch in case["events"]]


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_a_stream_is_a_piece_for_each_part_and_the_end_with_its_reason_and_counts(case: dict[str, Any]) -> None:
    pieces = pieces_of(render(request(case.get("shows", False)), batches_of(case)))
    assert {(piece.pop("modelVersion"), piece.pop("responseId")) for piece in pieces} == {('a "model"', "id-1")}
    assert pieces[-1].pop("usageMetadata") == COUNTS
    candidates = [piece.pop("candidates") for piece in pieces]
    assert not any(pieces)
    assert all(len(several) == 1 and several[0].pop("index") == 0 for several in candidates)
    assert candidates[-1][0].pop("finishReason") == case["reason"]
    contents = [several[0].pop("content") for several in candidates]
    assert [list(several[0]) for several in candidates] == [[]] * len(pieces)
    assert all(content.pop("role") == "model" for content in contents)
    assert [written(content["parts"]) for content in contents] == case["pieces"]


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_an_array_holds_the_same_pieces_as_a_stream_of_events(case: dict[str, Any]) -> None:
    shows = case.get("shows", False)
    array = json.loads(render(request(shows, query=""), batches_of(case)))
    assert array == pieces_of(render(request(shows), batches_of(case)))


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_an_answer_given_whole_says_the_same(case: dict[str, Any]) -> None:
    body = json.loads(whole(request(case.get("shows", False)), batches_of(case)))
    [candidate] = body["candidates"]
    assert written(candidate["content"]["parts"]) == case["parts"]
    assert (candidate["finishReason"], candidate["index"], candidate["content"]["role"]) == (case["reason"], 0, "model")
    assert (body["usageMetadata"], body["modelVersion"], body["responseId"]) == (COUNTS, 'a "model"', "id-1")


def test_every_reason_to_end_has_a_case() -> None:
    ends = {event[1] for case in STREAMS for batch in case["events"] for event in batch if event[0] == "finish"}
    assert ends == {reason.value for reason in FinishReason if reason is not FinishReason.ABORT}


def test_several_candidates_end_together() -> None:
    events: list[Event] = [
        TextDelta(1, "b"),
        Finish(1, FinishReason.LENGTH),
        TextDelta(0, "a"),
        Finish(0, FinishReason.STOP),
    ]
    asked = request(candidateCount=2)
    *some, last = pieces_of(render(asked, [events]))
    assert [piece["candidates"][0]["index"] for piece in some] == [1, 0]
    ends = [(each["index"], each["finishReason"]) for each in last["candidates"]]
    assert ends == [(0, "STOP"), (1, "MAX_TOKENS")]
    body = types.GenerateContentResponse.model_validate_json(whole(asked, [events]))
    assert [each.content.parts[0].text for each in body.candidates or () if each.content and each.content.parts] == [
        "a",
        "b",
    ]


def test_log_probabilities_come_with_their_tokens_and_their_average_at_the_end() -> None:
    half = TokenLogprob("ü".encode()[:1], float("-inf"))
    tokens = [TokenLogprob(b"a", -0.5, (TokenLogprob(b"a", -0.5), TokenLogprob(b"b", -1.5))), half]
    asked = request(responseLogprobs=True, logprobs=2)
    events: list[Event] = [TextDelta(0, "a", tokens[:1]), TextDelta(0, "", tokens[1:]), Finish(0, FinishReason.STOP)]
    first, second, last = map(types.GenerateContentResponse.model_validate, pieces_of(render(asked, [events])))
    full = types.GenerateContentResponse.model_validate_json(whole(asked, [events]))
    [[one], [other], [end], [all_]] = [each.candidates or () for each in (first, second, last, full)]
    assert one.logprobs_result is not None
    assert other.logprobs_result is not None
    assert all_.logprobs_result is not None
    [chosen] = one.logprobs_result.chosen_candidates or ()
    assert (chosen.token, chosen.log_probability) == ("a", -0.5)
    [top] = one.logprobs_result.top_candidates or ()
    assert [(each.token, each.log_probability) for each in top.candidates or ()] == [("a", -0.5), ("b", -1.5)]
    assert [each.log_probability for each in other.logprobs_result.chosen_candidates or ()] == [-9999.0]
    assert len(all_.logprobs_result.chosen_candidates or ()) == 2
    assert end.avg_logprobs == all_.avg_logprobs == (-0.5 - 9999.0) / 2


def ask_streamed(client: genai.Client) -> list[types.GenerateContentResponse]:
    return list(client.models.generate_content_stream(model="m", contents="a"))


def test_the_sdk_reads_a_stream_over_http(client: genai.Client, server: CannedServer) -> None:
    case = next(case for case in STREAMS if "calls at once" in case["name"])
    server.will_answer(200, (("content-type", "text/event-stream"),), render(request(), batches_of(case)))
    chunks = ask_streamed(client)
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    assert [(call.id, call.name, call.args) for call in calls] == [
        ("c1", "weather", {"city": "Zürich"}),
        ("c2", "now", {}),
    ]
    usage = chunks[-1].usage_metadata
    assert usage is not None
    assert (usage.candidates_token_count, usage.thoughts_token_count, usage.cached_content_token_count) == (3, 2, 8)


ABORTED: list[Event] = [TextDelta(0, "a"), Finish(0, FinishReason.ABORT)]
LATE = ErrorInfo(kind=ErrorKind.SERVER, message="late")
BREAKS: dict[str, tuple[Callable[[Any], bytes], int, str]] = {
    "an engine that gives up": (lambda renderer: renderer.events(ABORTED), 502, "gave the request up"),
    "an answer without an end": (
        lambda renderer: renderer.events([TextDelta(0, "a")]) + renderer.end(Usage()),
        502,
        "broke off",
    ),
    "an error": (
        lambda renderer: renderer.error(ErrorInfo(kind=ErrorKind.UNAVAILABLE, message="no worker")),
        503,
        "no worker",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
@pytest.mark.parametrize("query", [SSE, ""])
def test_a_stream_that_breaks_off_ends_with_an_error_on_which_the_sdk_raises(
    client: genai.Client, server: CannedServer, name: str, query: str
) -> None:
    break_off, code, says = BREAKS[name]
    renderer = DIALECT.stream(request(query=query), IDENTITY)
    body = renderer.start() + break_off(renderer)
    # Nothing follows.
    assert renderer.events([TextDelta(0, "b")]) + renderer.end(Usage()) + renderer.error(LATE) == b""
    error = (pieces_of(body) if query else json.loads(body))[-1]["error"]
    assert error["code"] == code
    if query:
        server.will_answer(200, (("content-type", "text/event-stream"),), body)
        with pytest.raises(errors.ServerError, match=says) as raised:
            ask_streamed(client)
        assert (raised.value.code, raised.value.status) == (code, "UNAVAILABLE")


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
    st.binary(min_size=1, max_size=9).map(lambda data: base64.b64encode(data).decode()),
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
                events.append(ToolCallStart(0, calls, f"call_{calls}", "tool"))
                events += [ToolArgsDelta(0, calls, arguments[at : at + size]) for at in range(0, len(arguments), size)]
                events.append(ToolCallEnd(0, calls, arguments))
                calls += 1
    return [*events, Finish(0, reason)]


def merged(parts: list[types.Part]) -> list[dict[str, Any]]:
    """Texts of one kind in a row are one, and what says nothing is nothing."""
    result: list[dict[str, Any]] = []
    for part in parts:
        plain = part.model_dump(exclude_none=True)
        if plain == {"text": ""}:
            continue
        before = result[-1] if result else {}
        same = before.get("text") and "text" in plain and plain.get("thought") == before.get("thought")
        if same and "thought_signature" not in plain:
            before["text"] += plain["text"]
        else:
            result.append(plain)
    return result


@given(PARTS, REASONS, st.booleans())
def test_the_sdk_accepts_any_answer_and_reads_it_as_the_one_given_whole(
    parts: list[Any], reason: FinishReason, shows: bool
) -> None:
    asked = request(shows)
    events = events_of_parts(parts, reason)
    chunks = [types.GenerateContentResponse.model_validate(each) for each in pieces_of(render(asked, [events]))]
    full = types.GenerateContentResponse.model_validate_json(whole(asked, [events]))
    said = [part for chunk in chunks for part in chunk.parts or ()]
    assert merged(said) == merged(full.parts or [])
    assert chunks[-1].usage_metadata == full.usage_metadata
    assert chunks[-1].candidates is not None
    assert full.candidates is not None
    assert chunks[-1].candidates[0].finish_reason == full.candidates[0].finish_reason
    assert [name for name in types.FinishReason if name == full.candidates[0].finish_reason]


@given(PARTS, st.lists(st.integers(0, 30), max_size=5), st.sampled_from([SSE, ""]))
def test_the_bytes_do_not_depend_on_how_events_are_batched(parts: list[Any], cuts: list[int], query: str) -> None:
    events = events_of_parts(parts, FinishReason.STOP)
    borders = [0, *sorted(min(cut, len(events)) for cut in cuts), len(events)]
    batches = [events[begin:end] for begin, end in pairwise(borders)]
    asked = request(query=query)
    assert render(asked, batches) == render(asked, [events])


@settings(max_examples=60)
@given(PARTS, st.booleans(), st.booleans())
def test_an_answer_that_comes_back_from_the_sdk_is_what_it_was(parts: list[Any], shows: bool, streamed: bool) -> None:
    events = events_of_parts([part for part in parts if part[0] != "refusal"], FinishReason.STOP)
    asked = request(shows)
    bodies = pieces_of(render(asked, [events])) if streamed else [json.loads(whole(asked, [events]))]
    # As a chat of the SDK keeps them: one content for each piece.
    answers = [types.GenerateContentResponse.model_validate(body).candidates for body in bodies]
    contents = [
        answer[0].content.model_dump(mode="json", by_alias=True, exclude_none=True)
        for answer in answers
        if answer and answer[0].content
    ]
    results = [
        {"functionResponse": {"id": event.call_id, "name": "tool", "response": {"output": "x"}}}
        for event in events
        if isinstance(event, ToolCallStart)
    ]
    last = {"role": "user", "parts": [*results, {"text": "b"}]}
    _, turn, _ = request(contents=[USER, *contents, last]).turns
    assert joined(turn.parts) == joined(said(events))


def said(events: list[Event]) -> list[Any]:
    """The parts that the events tell of."""
    parts: list[Any] = []
    for event in events:
        match event:
            case TextDelta():
                parts.append(Text(event.text))
            case ReasoningDelta():
                parts.append(Reasoning(event.text))
            case OpaqueDelta():
                parts.append(event.opaque)
            case ToolCallEnd():
                parts.append(ToolCall(call_id=f"call_{event.index}", name="tool", arguments=event.arguments))
    assert type(events[-1]) is Finish
    return parts


def joined(parts: Any) -> list[Any]:
    """Texts, thoughts, blobs and calls in their order; how texts and thoughts are divided does not matter."""
    flat: list[Any] = []
    for part in parts:
        blobs = [["blob", blob.minted_by, blob.data.translate(STANDARD)] for blob in getattr(part, "opaque", ())]
        match part:
            case Text():
                flat += [*blobs, ["text", part.text]]
            case Reasoning():
                flat += [["thought", part.text], *blobs]
            case Opaque():
                flat.append(["blob", part.minted_by, part.data])
            case ToolCall():
                flat += [*blobs, ["call", part.call_id, part.name, json.loads(part.arguments)]]
    result: list[Any] = []
    for entry in flat:
        if entry[0] in ("text", "thought") and not entry[1]:
            continue
        if result and entry[0] in ("text", "thought") and result[-1][0] == entry[0]:
            result[-1] = [entry[0], result[-1][1] + entry[1]]
        else:
            result.append(entry)
    return result


STANDARD = str.maketrans("-_", "+/")  # the SDK writes base64 in its other alphabet
