"""OpenAI's dialect as HTTP engines speak it: bytes to events, requests to bytes, and what goes through untouched."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.engines.base import ProtocolError
from extproc.engines.json_members import MembersError, members_of
from extproc.engines.openai_answer import OpenAIDecoder
from extproc.engines.openai_errors import error_of_event, error_of_status
from extproc.engines.openai_tap import NameChange, StreamTap, WholeTap
from extproc.engines.sse import MOST_LINE_BYTES, SseReader
from extproc.ir import (
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)


def chunk(delta: dict[str, Any] | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish} | more.pop("choice", {})
    return data({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more})


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def call(index: int | None, arguments: str = "", call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        piece["index"] = index
    if call_id:
        piece["id"] = call_id
    if name:
        piece["function"]["name"] = name
    return piece


DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
USAGE_CHUNK = data({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": USAGE})
ANSWER = (
    chunk({"role": "assistant", "content": ""})
    + b": keep-alive\n\n"
    + chunk({"reasoning_content": "Hm … "})
    + chunk({"reasoning": "ja."})
    + chunk({"content": "Grüße \u2028"})
    + chunk({"tool_calls": [call(0, "", "a", "f"), call(1, '{"y"', "b", "g")]})
    + chunk({"tool_calls": [call(0, '{"x":')]})
    + chunk({"tool_calls": [call(1, ":2}")]})
    + chunk({"tool_calls": [call(0, "1}")]})
    + chunk(finish="tool_calls")
    + USAGE_CHUNK
    + DONE
)


def decoder(choices: int = 1, **options: Any) -> OpenAIDecoder:
    return OpenAIDecoder(choices, lambda choice, index: f"made_{choice}_{index}", **options)


def decode(stream: bytes, cuts: list[int] | None = None, **options: Any) -> tuple[list[Event], ErrorInfo | None, Usage]:
    reader = decoder(**options)
    reader.streams()
    events: list[Event] = []
    for piece in cut(stream, cuts or []):
        events += reader.feed(piece)
    last, error = reader.end()
    return events + last, error, reader.usage


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(stream) + 1) for place in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(places)]


def joined(events: list[Event]) -> list[Event]:
    """With deltas of the same kind put together, which may be cut anywhere."""
    out: list[Event] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            out[-1] = TextDelta(event.choice, last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            out[-1] = ReasoningDelta(event.choice, last.text + event.text)
        elif isinstance(event, ToolArgsDelta) and isinstance(last, ToolArgsDelta):
            out[-1] = ToolArgsDelta(event.choice, event.index, last.text + event.text)
        else:
            out.append(event)
    return out


WANTED = [
    ReasoningDelta(0, "Hm … ja."),
    TextDelta(0, "Grüße \u2028"),
    ToolCallStart(0, 0, "a", "f"),
    ToolArgsDelta(0, 0, '{"x":1}'),
    ToolCallEnd(0, 0, '{"x":1}'),
    ToolCallStart(0, 1, "b", "g"),
    ToolArgsDelta(0, 1, '{"y":2}'),
    ToolCallEnd(0, 1, '{"y":2}'),
    Finish(0, FinishReason.TOOL_CALLS),
]


@given(st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_any_cut_of_any_lines_gives_the_same_events_with_interleaved_calls_in_order(
    cuts: list[int], line_end: bytes
) -> None:
    events, error, usage = decode(ANSWER.replace(b"\n", line_end), cuts)
    assert joined(events) == WANTED
    assert error is None
    assert usage == Usage(9, 5, 4, 2)


def test_a_call_whose_turn_has_come_is_told_while_it_comes() -> None:
    reader = decoder()
    reader.streams()
    reader.feed(chunk({"tool_calls": [call(0, "{}", "a", "f")]}))
    assert reader.feed(chunk({"tool_calls": [call(1, '{"x"', "b", "g")]})) == [
        ToolCallEnd(0, 0, "{}"),
        ToolCallStart(0, 1, "b", "g"),
        ToolArgsDelta(0, 1, '{"x"'),
    ]


@given(st.data())
def test_calls_in_any_interleaving_come_one_after_the_other_and_whole(draws: st.DataObject) -> None:
    arguments = draws.draw(
        st.lists(
            st.dictionaries(st.text(max_size=3), st.text(max_size=6), max_size=3).map(json.dumps),
            min_size=1,
            max_size=4,
        )
    )
    left = {index: list(text) for index, text in enumerate(arguments)}
    stream = b"".join(chunk({"tool_calls": [call(index, "", f"id{index}", f"f{index}")]}) for index in left)
    while any(left.values()):
        index = draws.draw(st.sampled_from([index for index, text in left.items() if text]))
        count = draws.draw(st.integers(1, len(left[index])))
        stream += chunk({"tool_calls": [call(index, "".join(left[index][:count]))]})
        del left[index][:count]
    events, error, _ = decode(stream + chunk(finish="tool_calls") + DONE)
    assert error is None
    wanted: list[Event] = []
    for index, text in enumerate(arguments):
        wanted += [ToolCallStart(0, index, f"id{index}", f"f{index}"), ToolArgsDelta(0, index, text)]
        wanted.append(ToolCallEnd(0, index, text))
    assert joined(events) == [*wanted, Finish(0, FinishReason.TOOL_CALLS)]


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"data: ", b"\n\n", b'{"choices":[', b"]}", DONE]), max_size=12)
)
def test_whatever_an_engine_sends_is_an_answer_or_an_error(pieces: list[bytes]) -> None:
    for streams in (True, False):
        reader = decoder()
        if streams:
            reader.streams()
        try:
            for piece in pieces:
                reader.feed(piece)
            _, error = reader.end()
        except ProtocolError:
            continue
        assert error is not None
    tap = StreamTap(1, hides_usage=True, name=NameChange("m", "n"))
    sent = b"".join([tap.feed(piece) for piece in pieces])
    tap.end()
    assert b"".join(pieces).startswith(sent[:10])


def test_calls_with_the_same_index_are_told_apart_by_their_ids() -> None:
    stream = chunk({"tool_calls": [call(0, '{"a":1}', "a", "f"), call(0, '{"b":2}', "b", "f")]}, finish="stop") + DONE
    events, _, _ = decode(stream)
    assert [event.arguments for event in events if isinstance(event, ToolCallEnd)] == ['{"a":1}', '{"b":2}']
    assert events[-1] == Finish(0, FinishReason.TOOL_CALLS)


def test_calls_without_id_and_arguments_get_both() -> None:
    events, _, _ = decode(chunk({"tool_calls": [call(0, "", None, "f")]}) + chunk(finish="tool_calls") + DONE)
    assert events[:3] == [ToolCallStart(0, 0, "made_0_0", "f"), ToolArgsDelta(0, 0, "{}"), ToolCallEnd(0, 0, "{}")]


def test_what_goes_into_a_custom_tool_is_taken_out_of_the_json() -> None:
    stream = chunk({"tool_calls": [call(0, '{"input": "a\\n', "a", "sh")]}) + chunk({"tool_calls": [call(0, 'b"}')]})
    events, _, _ = decode(stream + chunk(finish="tool_calls") + DONE, custom=frozenset(["sh"]))
    assert events[:3] == [
        ToolCallStart(0, 0, "a", "sh", custom=True),
        ToolArgsDelta(0, 0, "a\nb"),
        ToolCallEnd(0, 0, "a\nb"),
    ]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("function_call", FinishReason.TOOL_CALLS),
        ("eos_token", FinishReason.STOP),
    ],
)
def test_finish_reasons(said: str, reason: FinishReason) -> None:
    assert decode(chunk({"content": "x"}, finish=said) + DONE)[0][-1] == Finish(0, reason)


@pytest.mark.parametrize("key", ["stop_reason", "matched_stop"])
def test_the_stop_string_that_matched_is_told(key: str) -> None:
    stream = chunk({"content": "x"}, finish="stop", choice={key: "END"}) + DONE
    assert decode(stream, stops=("END",))[0][-1] == Finish(0, FinishReason.STOP_SEQUENCE, "END")
    assert decode(stream)[0][-1] == Finish(0, FinishReason.STOP)


def test_log_probabilities_go_with_their_text() -> None:
    score = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -1.0}]}
    stream = chunk({"content": "é"}, finish="stop", choice={"logprobs": {"content": [score]}}) + DONE
    wanted = [TokenLogprob("é".encode(), -0.5, (TokenLogprob(b"e", -1.0),))]
    assert decode(stream, scores=True)[0][0] == TextDelta(0, "é", wanted)
    assert decode(stream)[0][0] == TextDelta(0, "é", None)


@pytest.mark.parametrize("end", [b"", chunk({"content": "y"})[:-9], b"data: [DONE]\n\n"])
def test_a_stream_without_its_finish_is_truncated(end: bytes) -> None:
    _, error, _ = decode(chunk({"content": "x"}) + end)
    assert error is not None
    assert (error.kind, error.code) == (ErrorKind.BAD_GATEWAY, "stream_truncated")


def test_an_error_within_a_stream_is_the_answers_error() -> None:
    stream = chunk({"content": "x"}) + data({"error": {"message": "out of memory", "code": 503}}) + DONE
    events, error, _ = decode(stream)
    assert events == [TextDelta(0, "x")]
    assert error is not None
    assert (error.kind, error.message) == (ErrorKind.UNAVAILABLE, "out of memory")


def test_an_engine_that_gives_up_is_an_error() -> None:
    _, error, _ = decode(chunk({"content": "x"}, finish="abort") + DONE)
    assert error is not None
    assert error.code == "aborted"


def test_a_whole_answer_is_read_like_a_stream() -> None:
    message = {
        "role": "assistant",
        "content": "Text",
        "reasoning": "Why",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"y": 2}}},
        ],
    }
    body = json.dumps(
        {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    ).encode()
    reader = decoder()
    assert [event for piece in cut(body, [7, 50]) for event in reader.feed(piece)] == []
    events, error = reader.end()
    assert error is None
    assert reader.usage == Usage(9, 5, 4, 2)
    assert events[:2] == [ReasoningDelta(0, "Why"), TextDelta(0, "Text")]
    assert [event.arguments for event in events if isinstance(event, ToolCallEnd)] == ['{"x":1}', '{"y":2}']


@pytest.mark.parametrize("stream", [b"data: {nonsense\n\n", chunk({"content": "x"}, index=3), b"data: [1]\n\n"])
def test_what_is_not_the_dialect_breaks_the_protocol(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(stream)


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    reader = SseReader()
    for _ in range(MOST_LINE_BYTES // 65536):
        assert reader.feed(b"x" * 65536) == []
    with pytest.raises(ProtocolError):
        reader.feed(b"x")


# ---- what goes through


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_an_echoed_stream_is_the_same_bytes_however_it_is_cut(cuts: list[int]) -> None:
    tap = StreamTap(1, hides_usage=False, name=None)
    out = b"".join([tap.feed(piece) for piece in cut(ANSWER, cuts)]) + tap.end()
    assert out == ANSWER
    assert tap.complete
    assert tap.error is None
    assert tap.usage == Usage(9, 5, 4, 2)


@given(st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_only_usage_that_was_not_asked_for_and_the_models_name_are_changed(cuts: list[int], nulls: bool) -> None:
    stream = ANSWER
    if nulls:
        stream = stream.replace(b"}]}\n\n", b'}],"usage":null}\n\n')
    tap = StreamTap(1, hides_usage=True, name=NameChange("m", "client/é"))
    out = b"".join([tap.feed(piece) for piece in cut(stream, cuts)]) + tap.end()
    assert out == ANSWER.replace(USAGE_CHUNK, b"").replace(b'"model":"m"', '"model":"client/é"'.encode())
    assert tap.usage == Usage(9, 5, 4, 2)


def test_text_that_looks_like_the_models_name_stays() -> None:
    text = chunk({"content": '"model":"m","usage":null, "error" [DONE]\ndata: [DONE]\n'})
    tap = StreamTap(1, hides_usage=True, name=NameChange("m", "n"))
    assert tap.feed(text) == text.replace(b'"model":"m","choices"', b'"model":"n","choices"')
    assert not tap.complete
    assert tap.error is None


@given(st.integers(0, len(ANSWER) - 1))
def test_half_an_event_never_reaches_the_client(length: int) -> None:
    tap = StreamTap(1, hides_usage=False, name=None)
    out = tap.feed(ANSWER[:length])
    out += tap.end()
    assert ANSWER.startswith(out)
    if not tap.complete:
        assert out == b"" or out.endswith(b"\n\n")


def test_the_error_of_an_echoed_stream_is_found_and_passes() -> None:
    stream = chunk({"content": "x"}) + data({"error": {"message": "no memory", "type": "server_error"}})
    tap = StreamTap(1, hides_usage=False, name=None)
    assert tap.feed(stream) == stream
    assert tap.error is not None
    assert tap.error.message == "no memory"


def test_a_whole_body_goes_through_with_the_clients_name_unless_it_was_cut() -> None:
    body = b'{ "model" : "m", "choices":[{"message":{"content":"\\"model\\":\\"m\\""}}], "usage":{"prompt_tokens":3}}'
    tap = WholeTap(NameChange("m", "c"))
    assert tap.read(body) == body.replace(b'"model" : "m"', b'"model" : "c"')
    assert tap.usage == Usage(3)
    with pytest.raises(ProtocolError):
        WholeTap(None).read(body[:-1])


# ---- changing members in place

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=4), VALUES, max_size=6),
    st.dictionaries(st.text(max_size=4), VALUES, max_size=3),
    st.sampled_from([(",", ":"), (" , ", " : "), (",\n\t", ":\r\n ")]),
    st.booleans(),
)
def test_members_change_and_all_else_stays(
    before: dict[str, Any], new: dict[str, Any], separators: tuple[str, str], ascii_only: bool
) -> None:
    text = b" " + json.dumps(before, separators=separators, ensure_ascii=ascii_only).encode() + b"\n"
    members = members_of(text)
    assert {name: json.loads(members.value(name) or b"") for name in before} == before
    assert members.with_values({}) == text
    changed = members.with_values({name: json.dumps(value).encode() for name, value in new.items()})
    assert json.loads(changed) == before | new
    assert list(json.loads(changed)) == list(before | new)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"b":3,"a":1}',
        b'{"a":"x","b":1,"a":"x\\",\\"b\\":1"}',
        b'{"a":1,"\\u0061":1}',
        b"[1]",
        b"{",
    ],
)
def test_a_name_that_stands_there_twice_and_what_is_no_object_are_refused(text: bytes) -> None:
    with pytest.raises(MembersError):
        members_of(text)


# ---- errors


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 8 tokens.",
                "type": "BadRequestError",
                "code": 400,
            },
            ErrorKind.CONTEXT_LENGTH,
            "This model's maximum context length is 8 tokens.",
        ),
        (
            400,
            {"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error", "n_ctx": 8}},
            ErrorKind.CONTEXT_LENGTH,
            "too big",
        ),
        (400, {"error": {"message": "bad", "param": "top_k"}}, ErrorKind.INVALID_REQUEST, "bad"),
        (
            422,
            {"detail": [{"loc": ["body", "n"], "msg": "not an integer"}]},
            ErrorKind.INVALID_REQUEST,
            "not an integer",
        ),
        (404, {"error": {"message": "model 'x' not found"}}, ErrorKind.MODEL_NOT_FOUND, "model 'x' not found"),
        (404, {"detail": "Not Found"}, ErrorKind.BAD_GATEWAY, "Not Found"),
        (
            401,
            {"error": "Unauthorized: sk-1"},
            ErrorKind.BAD_GATEWAY,
            "The engine refused the gateway's own credentials.",
        ),
        (429, {"error": "full"}, ErrorKind.RATE_LIMIT, "full"),
        (500, {"error": {"message": "CUDA error"}}, ErrorKind.SERVER, "CUDA error"),
        (503, {"error": {"code": 503, "message": "Loading model"}}, ErrorKind.UNAVAILABLE, "Loading model"),
        (302, None, ErrorKind.BAD_GATEWAY, "The engine answered with status 302."),
    ],
)
def test_refusals_of_engines(status: int, body: Any, kind: ErrorKind, message: str) -> None:
    error = error_of_status(status, {}, b"<html>" if body is None else json.dumps(body).encode())
    assert (error.kind, error.message) == (kind, message)


def test_what_an_engine_asks_to_wait_is_kept() -> None:
    assert error_of_status(429, {"retry-after": "7"}, b"").retry_after_s == 7
    assert error_of_status(503, {"retry-after-ms": "2500"}, b"").retry_after_s == 2.5
    assert error_of_status(503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"").retry_after_s == 1
    assert error_of_status(400, {"retry-after": "7"}, b"").retry_after_s is None


@pytest.mark.parametrize("body", [b"[DONE]", b'{"error":null}', b'{"choices":[]}', b"[1]"])
def test_events_without_an_error(body: bytes) -> None:
    assert error_of_event(body) is None
