"""Answers of Chat Completions: a stream of chunks, or one JSON body.

What clients break on: the role may come once per choice, and the openers of all choices come first, in index order
(the SDK appends blindly); exactly one finish chunk per choice; no `usage` key unless asked, else null in every chunk
but the last; an error chunk is never followed by `[DONE]`, and a stream that ends without either looks complete.
"""

from __future__ import annotations

import math

import msgspec

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.openai_errors import JSON_TYPE, error_body
from extproc.ir import (
    ErrorInfo,
    ErrorKind,
    Event,
    Finish,
    FinishReason,
    RequestError,
    TextDelta,
    TokenLogprob,
    Usage,
)

_json = msgspec.json.Encoder().encode

_DONE = b"data: [DONE]\n\n"
_REASONS = {FinishReason.STOP: "stop", FinishReason.STOP_SEQUENCE: "stop", FinishReason.LENGTH: "length"}
_LEAST_LOGPROB = -9999.0  # what OpenAI writes for -inf, which JSON does not have

_ABORTED = ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="The engine gave up the request.", code="engine_aborted")
_TRUNCATED = ErrorInfo(
    kind=ErrorKind.BAD_GATEWAY, message="The engine's answer ended before it was complete.", code="stream_truncated"
)


class ChatStream:
    """Chunks of one streamed answer.

    Everything of a chunk but its text is written once per choice; a delta costs one string escape and two copies,
    0.3 us.
    """

    content_type = "text/event-stream"

    def __init__(self, identity: AnswerIdentity, choices: int, *, include_usage: bool) -> None:
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _json(identity.id),
            identity.created_s,
            _json(identity.model),
        )
        self._include_usage = include_usage
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_heads = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(choices)]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._unfinished = choices
        self._broken = False

    def start(self) -> bytes:
        """The openers of all choices."""
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},'
            b'"logprobs":null,"finish_reason":null}%b' % (self._head, index, self._tail)
            for index in range(len(self._text_heads))
        )

    def events(self, events: list[Event]) -> bytes:
        """The chunks of some events. After an abort there is nothing but the error."""
        if self._broken:
            return b""
        # Hot: once per token of every stream.
        chunks: list[bytes] = []
        heads = self._text_heads
        for event in events:
            if type(event) is TextDelta:
                if event.logprobs is None:
                    if event.text:
                        chunks += (heads[event.choice], _json(event.text), self._text_tail)
                else:
                    chunks += (
                        heads[event.choice],
                        _json(event.text),
                        b'},"logprobs":',
                        logprobs_json(event.logprobs),
                        b',"finish_reason":null}',
                        self._tail,
                    )
            elif type(event) is Finish:
                if event.reason is FinishReason.ABORT:
                    chunks.append(self.error(_ABORTED))
                    break
                self._unfinished -= 1
                chunks.append(
                    b'%b{"index":%d,"delta":{},"logprobs":null,%b}%b'
                    % (self._head, event.choice, _ending(event), self._tail)
                )
        return b"".join(chunks)

    def end(self, usage: Usage) -> bytes:
        """The last chunks. A stream with an unfinished choice breaks off instead."""
        if self._broken:
            return b""
        if self._unfinished:
            return self.error(_TRUNCATED)
        if self._include_usage:
            return b'%b],"usage":%b}\n\n%b' % (self._head, _usage_json(usage), _DONE)
        return _DONE

    def error(self, error: ErrorInfo) -> bytes:
        """The last chunk of a stream that breaks off. The SDKs raise on it."""
        if self._broken:
            return b""
        self._broken = True
        return b"data: %b\n\n" % error_body(error)


class ChatWhole:
    """The one body of an answer that is not streamed."""

    content_type = JSON_TYPE

    def __init__(self, identity: AnswerIdentity, choices: int, *, logprobs: bool) -> None:
        self._identity = identity
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._logprobs: list[list[TokenLogprob]] | None = [[] for _ in range(choices)] if logprobs else None
        self._finishes: list[Finish | None] = [None] * choices

    def events(self, events: list[Event]) -> None:
        """Collect."""
        for event in events:
            if type(event) is TextDelta:
                self._texts[event.choice].append(event.text)
                if event.logprobs is not None and self._logprobs is not None:
                    self._logprobs[event.choice] += event.logprobs
            elif type(event) is Finish:
                self._finishes[event.choice] = event

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where a choice was aborted or never finished."""
        choices = []
        for index, finish in enumerate(self._finishes):
            if finish is None:
                raise RequestError(_TRUNCATED)
            if finish.reason is FinishReason.ABORT:
                raise RequestError(_ABORTED)
            logprobs = b"null" if self._logprobs is None else logprobs_json(self._logprobs[index])
            choices.append(
                b'{"index":%d,"message":{"role":"assistant","content":%b,"refusal":null},"logprobs":%b,%b}'
                % (index, _json("".join(self._texts[index])), logprobs, _ending(finish))
            )
        identity = self._identity
        return b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,"choices":[%b],"usage":%b}' % (
            _json(identity.id),
            identity.created_s,
            _json(identity.model),
            b",".join(choices),
            _usage_json(usage),
        )


def logprobs_json(entries: list[TokenLogprob]) -> bytes:
    """The `logprobs` object of a choice."""
    return _json({"content": [_entry(entry) | {"top_logprobs": list(map(_entry, entry.top))} for entry in entries]})


def _entry(entry: TokenLogprob) -> dict[str, object]:
    return {
        "token": entry.token.decode("utf-8", "replace"),
        "logprob": entry.logprob if math.isfinite(entry.logprob) else _LEAST_LOGPROB,
        "bytes": list(entry.token),
    }


def _ending(finish: Finish) -> bytes:
    """`finish_reason`, and as servers of open models do, the stop string that matched."""
    reason = b'"finish_reason":"%b"' % _REASONS[finish.reason].encode()
    if finish.stop_sequence is not None:
        reason += b',"matched_stop":' + _json(finish.stop_sequence)
    return reason


def _usage_json(usage: Usage) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":0}}'
        % (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            usage.cached_tokens,
        )
    )
