"""Answers of generateContent: a stream of pieces, as server-sent events or as one JSON array, or one JSON body.

What clients break on: an event is exactly `data: ` with one JSON object, and there is nothing else in the stream, no
comment and no end mark; function calls come whole; the last piece has the finish reason and the usage; a piece without
candidates makes a chat forget the answer. Thoughts are shown to who asks for them; else they travel in the signature of
what follows them.
"""

from __future__ import annotations

import msgspec

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.gemini_answer_parts import NOTHING, LogprobSum, PartWriter, logprobs_json
from extproc.dialects.gemini_errors import JSON_TYPE, error_body
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
    Usage,
)

_json = msgspec.json.Encoder().encode

_REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.STOP_SEQUENCE: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.TOOL_CALLS: "STOP",
    FinishReason.CONTENT_FILTER: "SAFETY",
    FinishReason.REFUSAL: "STOP",
}


class GeminiStream:
    """Pieces of one streamed answer.

    Everything of a piece but its text is written once per candidate; a delta costs one string escape and two copies.
    """

    def __init__(self, request: ChatRequest, identity: AnswerIdentity, *, array: bool) -> None:
        candidates = request.sampling.n
        self.content_type = JSON_TYPE if array else "text/event-stream"
        self.keep_alive = b"\n" if array else b"\n\n"  # space between values, or an event of nothing, not a comment
        self._array = array
        self._open = b"[" if array else b"data: "  # before the first piece
        self._before = b",\r\n" if array else b"data: "
        self._after = b"" if array else b"\n\n"
        self._identity = _identity(identity)
        self._head = self._before + b'{"candidates":[{"content":{"parts":['
        tails = [
            b'],"role":"model"},"index":%d}],%b}%b' % (index, self._identity, self._after)
            for index in range(candidates)
        ]
        self._tails = tails
        self._text_head = self._head + b'{"text":'
        self._text_tails = [b"}" + tail for tail in tails]
        shows = request.reasoning.visibility in ("summary", "full")
        self._parts = [PartWriter(shows=shows) for _ in range(candidates)]
        self._plain = [False] * candidates  # text goes on, and nothing waits for it
        self._logprobs = [LogprobSum() for _ in range(candidates)]
        self._finishes: dict[int, Finish] = {}
        self._begun = False
        self._broken = False

    def start(self) -> bytes:
        """Nothing: a piece without content would be one too many."""
        return b""

    def events(self, events: list[Event]) -> bytes:
        """The pieces of some events. After an abort there is nothing but the error."""
        if self._broken:
            return b""
        # Hot: once per token of every stream.
        pieces: list[bytes] = []
        plain = self._plain
        for event in events:
            if type(event) is TextDelta and plain[event.choice] and event.logprobs is None:
                if event.text:
                    pieces += (self._text_head, _json(event.text), self._text_tails[event.choice])
            elif type(event) is Finish:
                if event.reason is FinishReason.ABORT:
                    pieces.append(self._error(ABORTED))
                    break
                self._finishes[event.choice] = event
            else:
                self._other(event, pieces)
        said = b"".join(pieces)
        return said if self._begun else self._opened(said)

    def end(self, usage: Usage) -> bytes:
        """The last piece. A stream with an unfinished choice breaks off instead."""
        if self._broken:
            return b""
        if len(self._finishes) < len(self._parts):
            return self.error(TRUNCATED)
        candidates = []
        for index, parts in enumerate(self._parts):
            rest = b",".join(parts.rest() or [NOTHING])
            ending = _ending(self._finishes[index])
            candidates.append(
                b'{"content":{"parts":[%b],"role":"model"},%b,%b"index":%d}'
                % (rest, ending, self._logprobs[index].average(), index)
            )
        piece = b'{"candidates":[%b],"usageMetadata":%b,%b}' % (b",".join(candidates), _usage(usage), self._identity)
        return self._opened(self._before + piece + self._after) + (b"]" if self._array else b"")

    def error(self, error: ErrorInfo) -> bytes:
        """The last piece of a stream that breaks off. The SDKs raise on it."""
        return b"" if self._broken else self._opened(self._error(error))

    def _error(self, error: ErrorInfo) -> bytes:
        self._broken = True
        return self._before + error_body(error) + (b"]" if self._array else self._after)

    def _opened(self, pieces: bytes) -> bytes:
        if self._begun or not pieces:
            return pieces
        self._begun = True
        return self._open + pieces[len(self._before) :]

    def _other(self, event: Event, pieces: list[bytes]) -> None:
        """What is not plain text."""
        writer = self._parts[event.choice]
        parts = writer.of(event)
        self._plain[event.choice] = writer.last == "text"
        said = b""
        if type(event) is TextDelta and event.logprobs:
            self._logprobs[event.choice].add(event.logprobs)
            said = b',"logprobsResult":' + logprobs_json(event.logprobs)
            parts = parts or [NOTHING]
        if not parts:
            return
        pieces += (self._head, b",".join(parts))
        if said:
            tail = b'],"role":"model"}%b,"index":%d}],%b}%b'
            pieces.append(tail % (said, event.choice, self._identity, self._after))
        else:
            pieces.append(self._tails[event.choice])


class _Candidate:
    """One candidate of an answer that is not streamed."""

    __slots__ = ("_kind", "_logprobs", "_pieces", "_texts", "finish", "parts")

    def __init__(self, *, shows: bool) -> None:
        self.parts = PartWriter(shows=shows)
        self.finish: Finish | None = None
        self._pieces: list[bytes] = []
        self._kind = ""  # of what is being collected
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, event: Event) -> None:
        match event:
            case TextDelta() | RefusalDelta() | ReasoningDelta():
                kind = "thought" if type(event) is ReasoningDelta else "text"
                if type(event) is TextDelta and event.logprobs:
                    self._logprobs += event.logprobs
                if event.text:
                    if kind != self._kind:
                        self._flush()
                        self._kind = kind
                    self._texts.append(event.text)
            case Finish():
                self.finish = event
            case _:
                self._flush()
                self._pieces += self.parts.of(event)

    def body(self, finish: Finish, index: int) -> bytes:
        self._flush()
        pieces = self._pieces + self.parts.rest()
        said = b""
        if self._logprobs:
            total = LogprobSum()
            total.add(self._logprobs)
            said = total.average() + b'"logprobsResult":%b,' % logprobs_json(self._logprobs)
        return b'{"content":{"parts":[%b],"role":"model"},%b,%b"index":%d}' % (
            b",".join(pieces or [NOTHING]),
            _ending(finish),
            said,
            index,
        )

    def _flush(self) -> None:
        if self._kind:
            text = "".join(self._texts)
            self._pieces += self.parts.text(text) if self._kind == "text" else self.parts.thought(text)
            self._kind = ""
            self._texts.clear()


class GeminiWhole:
    """The one body of an answer that is not streamed."""

    content_type = JSON_TYPE

    def __init__(self, request: ChatRequest, identity: AnswerIdentity) -> None:
        shows = request.reasoning.visibility in ("summary", "full")
        self._identity = _identity(identity)
        self._candidates = [_Candidate(shows=shows) for _ in range(request.sampling.n)]

    def events(self, events: list[Event]) -> None:
        """Collect."""
        for event in events:
            self._candidates[event.choice].add(event)

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where a choice was aborted or never finished."""
        candidates = []
        for index, candidate in enumerate(self._candidates):
            finish = candidate.finish
            if finish is None:
                raise RequestError(TRUNCATED)
            if finish.reason is FinishReason.ABORT:
                raise RequestError(ABORTED)
            candidates.append(candidate.body(finish, index))
        return b'{"candidates":[%b],"usageMetadata":%b,%b}' % (b",".join(candidates), _usage(usage), self._identity)


def _identity(identity: AnswerIdentity) -> bytes:
    return b'"modelVersion":%b,"responseId":%b' % (_json(identity.model), _json(identity.id))


def _ending(finish: Finish) -> bytes:
    return b'"finishReason":"%b"' % _REASONS[finish.reason].encode()


def _usage(usage: Usage) -> bytes:
    """Thoughts are not counted among the candidates' tokens, cached tokens are among the prompt's."""
    counts = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": max(0, usage.completion_tokens - usage.reasoning_tokens),
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        counts["cachedContentTokenCount"] = usage.cached_tokens
    if usage.reasoning_tokens:
        counts["thoughtsTokenCount"] = usage.reasoning_tokens
    return _json(counts)
