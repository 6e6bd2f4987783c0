"""Chat Completions answers: the rules of the stream, the whole body, and what the official SDK makes of both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from dialects_canned_server import Reader, canned_reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.dialects.openai_errors import render_error
from extproc.dialects.openai_models import OpenAIModels
from extproc.ir import (
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    ModelCard,
    RequestError,
    Sampling,
    TextDelta,
    TokenLogprob,
    Usage,
)

DATA = Path(__file__).parent / "data"
STREAMS = json.loads((DATA / "chat_stream.json").read_text())
ERRORS = json.loads((DATA / "errors.json").read_text())
DIALECT = OpenAIChat(BodyLimits())
IDENTITY = AnswerIdentity("chatcmpl-1", 1_700_000_000, 'a "model"')
USAGE = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=8)
USAGE_JSON = {
    "prompt_tokens": 11,
    "completion_tokens": 5,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
LOGPROBS = [
    TokenLogprob(b" caf\xc3", -0.5, (TokenLogprob(b" caf\xc3", -0.5), TokenLogprob(b" th", -1.5))),
    TokenLogprob(b"\xa9", float("-inf")),
]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with canned_reader() as reader:
        yield reader


def request(n: int = 1, *, include_usage: bool = False, logprobs: bool = False) -> ChatRequest:
    sampling = Sampling(n=n, top_logprobs=1 if logprobs else None)
    return ChatRequest(model=IDENTITY.model, turns=(), sampling=sampling, include_usage=include_usage)


def event(written: list[Any]) -> Event:
    if written[0] == "text":
        return TextDelta(written[1], written[2])
    return Finish(written[1], FinishReason(written[2]), *written[3:])


def data_of(stream: bytes) -> list[Any]:
    """The data of each event; checks that the stream holds nothing else."""
    *lines, rest = stream.split(b"\n\n")
    assert rest == b""
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    return [line[6:] if line == b"data: [DONE]" else json.loads(line[6:]) for line in lines]


def render(case: dict[str, Any], *, include_usage: bool) -> bytes:
    renderer = DIALECT.stream(request(case.get("n", 1), include_usage=include_usage), IDENTITY)
    pieces = [renderer.start(), *(renderer.events([event(e) for e in piece]) for piece in case["events"])]
    return b"".join([*pieces, renderer.end(USAGE)])


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_a_stream_is_openers_deltas_finishes_and_done(case: dict[str, Any]) -> None:
    *chunks, done = data_of(render(case, include_usage=False))
    assert done == b"[DONE]"
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": 'a "model"'}
    assert chunks == [{**head, "choices": [choice]} for choice in case["choices"]]


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_usage_when_asked_for_is_null_in_every_chunk_but_a_last_one(case: dict[str, Any]) -> None:
    *chunks, last, done = data_of(render(case, include_usage=True))
    assert done == b"[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None] * len(case["choices"])
    assert (last["choices"], last["usage"]) == ([], USAGE_JSON)


def test_log_probabilities_come_with_their_text() -> None:
    renderer = DIALECT.stream(request(logprobs=True), IDENTITY)
    [chunk] = data_of(renderer.events([TextDelta(0, " café", LOGPROBS)]))
    assert chunk["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": " caf\ufffd",
                "logprob": -0.5,
                "bytes": [32, 99, 97, 102, 195],
                "top_logprobs": [
                    {"token": " caf\ufffd", "logprob": -0.5, "bytes": [32, 99, 97, 102, 195]},
                    {"token": " th", "logprob": -1.5, "bytes": [32, 116, 104]},
                ],
            },
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [169], "top_logprobs": []},
        ]
    }


def test_an_aborted_choice_breaks_the_stream_off() -> None:
    renderer = DIALECT.stream(request(2), IDENTITY)
    events: list[Event] = [TextDelta(0, "a"), Finish(0, FinishReason.ABORT), TextDelta(1, "b")]
    chunk, error = data_of(renderer.events(events))
    assert chunk["choices"][0]["delta"] == {"content": "a"}
    assert error["error"]["type"] == "server_error"
    assert renderer.events([TextDelta(1, "b")]) == renderer.end(USAGE) == b""


def test_a_stream_without_a_finish_never_ends_cleanly() -> None:
    renderer = DIALECT.stream(request(2), IDENTITY)
    renderer.events([Finish(0, FinishReason.STOP)])
    [error] = data_of(renderer.end(USAGE))
    assert error["error"]["code"] == "stream_truncated"


def test_a_whole_answer_has_its_choices_in_order() -> None:
    renderer = DIALECT.whole(request(2), IDENTITY)
    renderer.events([TextDelta(1, "b"), TextDelta(0, "a"), Finish(1, FinishReason.LENGTH)])
    renderer.events([TextDelta(0, "c"), Finish(0, FinishReason.STOP_SEQUENCE, "END")])
    assert json.loads(renderer.end(USAGE)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": 'a "model"',
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ac", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "matched_stop": "END",
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "b", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            },
        ],
        "usage": USAGE_JSON,
    }


@pytest.mark.parametrize("ending", [[], [Finish(0, FinishReason.ABORT)]])
def test_an_incomplete_whole_answer_is_an_error(ending: list[Event]) -> None:
    renderer = DIALECT.whole(request(), IDENTITY)
    renderer.events([TextDelta(0, "a"), *ending])
    with pytest.raises(RequestError) as caught:
        renderer.end(USAGE)
    assert caught.value.info.kind is ErrorKind.BAD_GATEWAY


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case["error"]["kind"])
def test_each_kind_of_error_has_its_status_and_body(case: dict[str, Any]) -> None:
    info = ErrorInfo(**{**case["error"], "kind": ErrorKind(case["error"]["kind"])})
    rendered = render_error(info)
    assert rendered.status == case["status"]
    assert dict(rendered.headers) == {"content-type": "application/json", **case.get("headers", {})}
    assert json.loads(rendered.body) == {
        "error": {"message": "m", "type": case["type"], "param": info.param, "code": case["code"]}
    }


def test_every_kind_of_error_is_in_the_table() -> None:
    assert {case["error"]["kind"] for case in ERRORS} == {kind.value for kind in ErrorKind}


# The official SDK, in strict mode, reads what is rendered.

MESSAGES: Any = [{"role": "user", "content": "hi"}]
SSE = (("content-type", "text/event-stream"),)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["name"])
def test_the_sdk_reads_every_chunk(reader: Reader, case: dict[str, Any], include_usage: bool) -> None:
    client = reader.will_read(200, SSE, render(case, include_usage=include_usage))
    chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [c["finish_reason"] for c in case["choices"]]
    assert chunks[-1].usage is None if not include_usage else chunks[-1].usage.total_tokens == 16


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> tuple[int, list[Event]]:
    """Texts of several choices, mixed, each with its end."""
    n = draw(st.integers(1, 3))
    events: list[Event] = [TextDelta(i, text) for i, text in draw(st.lists(st.tuples(st.integers(0, n - 1), TEXTS)))]
    reasons = st.sampled_from([FinishReason.STOP, FinishReason.STOP_SEQUENCE])  # the SDK's helper raises on length
    for index in range(n):
        last = max((at for at, e in enumerate(events) if e.choice == index), default=-1)
        events.insert(draw(st.integers(last + 1, len(events))), Finish(index, draw(reasons)))
    return n, events


@given(answer=answers(), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_sdk_gathers_the_same_answer_from_any_stream_as_from_the_whole(
    reader: Reader, answer: tuple[int, list[Event]], data: st.DataObject
) -> None:
    n, events = answer
    cut = data.draw(st.integers(0, len(events)))
    streamed = DIALECT.stream(request(n, include_usage=True), IDENTITY)
    body = streamed.start() + streamed.events(events[:cut]) + streamed.events(events[cut:]) + streamed.end(USAGE)
    whole = DIALECT.whole(request(n), IDENTITY)
    whole.events(events[:cut])
    whole.events(events[cut:])
    client = reader.will_read(200, SSE, body)
    with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        gathered = stream.get_final_completion()
    client = reader.will_read(200, (("content-type", whole.content_type),), whole.end(USAGE))
    given_whole = client.chat.completions.create(model="m", messages=MESSAGES)
    assert [(c.index, c.message.content or "", c.finish_reason) for c in gathered.choices] == [
        (c.index, c.message.content, c.finish_reason) for c in given_whole.choices
    ]
    assert gathered.usage == given_whole.usage


def test_the_sdk_reads_log_probabilities(reader: Reader) -> None:
    whole = DIALECT.whole(request(logprobs=True), IDENTITY)
    whole.events([TextDelta(0, " café", LOGPROBS), Finish(0, FinishReason.STOP)])
    client = reader.will_read(200, (("content-type", whole.content_type),), whole.end(USAGE))
    logprobs = client.chat.completions.create(model="m", messages=MESSAGES).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content) == " café".encode()


def test_the_sdk_raises_on_a_stream_that_breaks_off(reader: Reader) -> None:
    renderer = DIALECT.stream(request(), IDENTITY)
    body = renderer.start() + renderer.error(ErrorInfo(kind=ErrorKind.TIMEOUT, message="too late"))
    client = reader.will_read(200, SSE, body)
    with pytest.raises(openai.APIError, match="too late"):
        list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def test_the_sdk_reads_errors(reader: Reader) -> None:
    rendered = render_error(ErrorInfo(kind=ErrorKind.CONTEXT_LENGTH, message="too long", param="messages"))
    client = reader.will_read(rendered.status, rendered.headers, rendered.body)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


CARDS = (ModelCard(id="org/name:v1", created_s=5, context_tokens=4096), ModelCard(id="m", created_s=6))


MODELS = OpenAIModels()


def of_models(argument: str) -> Inbound:
    return Inbound("GET", f"/v1/models/{argument}", "", {}, argument)


def test_the_sdk_lists_models(reader: Reader) -> None:
    rendered = MODELS.list(of_models(""), CARDS)
    client = reader.will_read(rendered.status, rendered.headers, rendered.body)
    assert [(m.id, m.created, m.owned_by) for m in client.models.list()] == [
        ("org/name:v1", 5, "llm-extproc"),
        ("m", 6, "llm-extproc"),
    ]


@pytest.mark.parametrize("raw_id", ["org/name:v1", "org%2Fname%3Av1"])
def test_a_model_is_found_by_its_name_encoded_or_not(reader: Reader, raw_id: str) -> None:
    assert MODELS.name(of_models(raw_id), b"") == "org/name:v1"
    rendered = MODELS.get(of_models(raw_id), CARDS[0])
    client = reader.will_read(rendered.status, rendered.headers, rendered.body)
    assert client.models.retrieve("org/name:v1").id == "org/name:v1"
    assert json.loads(rendered.body)["max_model_len"] == 4096
