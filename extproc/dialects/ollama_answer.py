"""Answers of Ollama's API: a stream of lines of JSON, or one JSON body.

Calls come whole; the last line has `done`, the counts, and durations in nanoseconds. `/api/chat` says a message,
`/api/generate` a response.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.ollama_errors import JSON_TYPE, error_body
from extproc.dialects.timestamps import timestamp
from extproc.dialects.tool_arguments import object_of
from extproc.ir import (
    ABORTED,
    TRUNCATED,
    ChatRequest,
    ErrorInfo,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    RequestError,
    TextDelta,
    TokenLogprob,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

_json = msgspec.json.Encoder().encode

_LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have
_LINE_END = b"\n"


Clock = Callable[[], int]
"""Nanoseconds since any time."""


class OllamaStream:
    """Lines of one streamed answer.

    Everything of a line but its text is written once; a delta costs one string escape and two copies.
    """

    content_type = "application/x-ndjson"

    def __init__(
        self, request: ChatRequest, identity: AnswerIdentity, *, chat: bool, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._shows = request.reasoning.visibility != "omitted"
        self._chat = chat
        self._times = _Times(clock)
        self._head = _head(identity)
        self._text_head = self._head + (b'"message":{"role":"assistant","content":' if chat else b'"response":')
        self._text_tail = b'},"done":false}\n' if chat else b',"done":false}\n'
        self.keep_alive = self._text_head + b'""' + self._text_tail  # a line that is empty is none of JSON
        self._call: ToolCallStart | None = None
        self._finish: Finish | None = None
        self._broken = False

    def start(self) -> bytes:
        """There is nothing to begin with."""
        return b""

    def events(self, events: list[Event]) -> bytes:
        """The lines of some events. After an abort there is nothing but the error."""
        if self._broken:
            return b""
        if not self._times.first:
            self._times.begins()
        # Hot: once per token of every stream.
        pieces: list[bytes] = []
        for event in events:
            if type(event) is TextDelta and event.logprobs is None:
                if event.text:
                    pieces += (self._text_head, _json(event.text), self._text_tail)
            else:
                self._other(event, pieces)
        return b"".join(pieces)

    def end(self, usage: Usage) -> bytes:
        """The last line. A stream without a finish breaks off instead."""
        if self._broken:
            return b""
        if self._finish is None:
            return self.error(TRUNCATED)
        nothing = self._text_head + b'""' + (b"}," if self._chat else b",")
        return nothing + _ending(self._finish, usage, self._times) + _LINE_END

    def error(self, error: ErrorInfo) -> bytes:
        """The last line of a stream that breaks off. The SDKs raise on it."""
        if self._broken:
            return b""
        self._broken = True
        return error_body(error) + _LINE_END

    def _other(self, event: Event, pieces: list[bytes]) -> None:
        match event:
            case TextDelta():
                logprobs = _logprobs(event.logprobs or [])
                tail = b'%b,"logprobs":%b,"done":false}\n' % (b"}" if self._chat else b"", logprobs)
                pieces += (self._text_head, _json(event.text), tail)
            case RefusalDelta():
                pieces += (self._text_head, _json(event.text), self._text_tail)
            case ReasoningDelta():
                if self._shows and event.text:
                    pieces += (self._text_head, b'"","thinking":', _json(event.text), self._text_tail)
            case ToolCallStart():
                self._call = event
            case ToolCallEnd():
                assert self._call is not None
                call = _json([_called(self._call, event)])
                pieces += (self._text_head, b'"","tool_calls":', call, self._text_tail)
            case Finish(reason=FinishReason.ABORT):
                pieces.append(self.error(ABORTED))
            case Finish():
                self._finish = event


class OllamaWhole:
    """The one body of an answer that is not streamed."""

    content_type = JSON_TYPE

    def __init__(
        self, request: ChatRequest, identity: AnswerIdentity, *, chat: bool, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._shows = request.reasoning.visibility != "omitted"
        self._chat = chat
        self._times = _Times(clock)
        self._head = _head(identity)
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._call: ToolCallStart | None = None
        self._logprobs: list[TokenLogprob] = []
        self._finish: Finish | None = None

    def events(self, events: list[Event]) -> None:
        """Collect."""
        if not self._times.first:
            self._times.begins()
        for event in events:
            match event:
                case TextDelta() | RefusalDelta():
                    self._texts.append(event.text)
                    if type(event) is TextDelta and event.logprobs:
                        self._logprobs += event.logprobs
                case ReasoningDelta():
                    if self._shows:
                        self._thoughts.append(event.text)
                case ToolCallStart():
                    self._call = event
                case ToolCallEnd():
                    assert self._call is not None
                    self._calls.append(_called(self._call, event))
                case Finish():
                    self._finish = event

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where the answer was aborted or never finished."""
        finish = self._finish
        if finish is None:
            raise RequestError(TRUNCATED)
        if finish.reason is FinishReason.ABORT:
            raise RequestError(ABORTED)
        said: dict[str, Any] = {"role": "assistant"} if self._chat else {}
        said["content" if self._chat else "response"] = "".join(self._texts)
        if self._thoughts:
            said["thinking"] = "".join(self._thoughts)
        if self._calls:
            said["tool_calls"] = self._calls
        members = b'"message":%b,' % _json(said) if self._chat else _json(said)[1:-1] + b","
        if self._logprobs:
            members += b'"logprobs":%b,' % _logprobs(self._logprobs)
        return self._head + members + _ending(finish, usage, self._times)


class _Times:
    """When an answer was asked for and when it began, in the clock's nanoseconds."""

    __slots__ = ("_asked", "_clock", "first")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked = clock()
        self.first = 0  # 0: not yet

    def begins(self) -> None:
        self.first = self._clock()

    def told(self) -> dict[str, int]:
        """Loading is none of a request's time here."""
        now = self._clock()
        first = self.first or now
        return {
            "total_duration": now - self._asked,
            "load_duration": 0,
            "prompt_eval_duration": first - self._asked,
            "eval_duration": now - first,
        }


def _head(identity: AnswerIdentity) -> bytes:
    return b'{"model":%b,"created_at":%b,' % (_json(identity.model), _json(timestamp(identity.created_s)))


def _called(start: ToolCallStart, end: ToolCallEnd) -> dict[str, Any]:
    """What is no object is wrapped."""
    return {
        "id": start.call_id,
        "function": {"index": end.index, "name": start.name, "arguments": object_of(end.arguments)},
    }


def _ending(finish: Finish, usage: Usage, times: _Times) -> bytes:
    """The last members of the last object, and its end. Counts are inclusive."""
    told = times.told()
    last = {
        "done": True,
        "done_reason": "length" if finish.reason is FinishReason.LENGTH else "stop",
        "total_duration": told["total_duration"],
        "load_duration": told["load_duration"],
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": told["prompt_eval_duration"],
        "eval_count": usage.completion_tokens,
        "eval_duration": told["eval_duration"],
    }
    return _json(last)[1:]


def _logprobs(entries: list[TokenLogprob]) -> bytes:
    return _json([_entry(entry) | {"top_logprobs": list(map(_entry, entry.top))} for entry in entries])


def _entry(entry: TokenLogprob) -> dict[str, object]:
    return {
        "token": entry.token.decode("utf-8", "replace"),
        "logprob": entry.logprob if math.isfinite(entry.logprob) else _LEAST_LOGPROB,
        "bytes": list(entry.token),
    }
