"""Answers of Chat Completions from engines that speak OpenAI's dialect, streamed or whole, to events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.engines.base import ProtocolError
from extproc.engines.openai_calls import CallOrder
from extproc.engines.openai_errors import error_of_event
from extproc.engines.openai_usage import EngineUsage
from extproc.engines.sse import SseReader
from extproc.ir import (
    ABORTED,
    TRUNCATED,
    ErrorInfo,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    Usage,
)

MOST_BODY_BYTES = 64 << 20
"""Largest answer that is not streamed."""


_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ABORT,
    "insufficient_system_resource": FinishReason.ABORT,
}
"""All others are ends of the model's own."""


class _Function(Struct):
    name: str | None = None
    arguments: Any = None


class _CallPiece(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Score(Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[_Score] | None = None


class _Scores(Struct):
    content: list[_Score] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None
    stop_reason: Any = None  # vLLM: the stop string or token that matched
    matched_stop: Any = None  # SGLang
    logprobs: Raw | UnsetType = UNSET


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: EngineUsage | None = None
    error: Any = None
    object: str | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_SCORES = msgspec.json.Decoder(_Scores)


class _ChoiceState:
    __slots__ = ("calls", "finished")

    def __init__(self, calls: CallOrder) -> None:
        self.calls = calls
        self.finished = False


class OpenAIDecoder:
    """Decodes one answer, cut anywhere. Counts are final after `end`."""

    def __init__(
        self,
        choices: int,
        make_id: Callable[[int, int], str],
        *,
        stops: tuple[str, ...] = (),
        custom: frozenset[str] = frozenset(),
        scores: bool = False,
    ) -> None:
        """`stops`: the request's stop strings. `custom`: names of custom tools. `scores`: log probabilities are wanted.

        `make_id`: for tool calls to which the engine gives none, of choice and index.
        """
        self._choices = [_ChoiceState(CallOrder(index, make_id, custom)) for index in range(choices)]
        self._stops = stops
        self._scores = scores
        self._sse: SseReader | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._pieces = 0
        self._usage: EngineUsage | None = None
        self._done = False
        self.error: ErrorInfo | None = None
        """What the engine said went wrong; nothing follows."""

    def streams(self) -> None:
        """The answer comes as server-sent events. Called before `feed`."""
        self._sse = SseReader()

    def feed(self, data: bytes) -> list[Event]:
        """Raises ProtocolError on what is not the dialect."""
        events: list[Event] = []
        sse = self._sse
        if sse is None:
            self._body.append(data)
            self._body_bytes += len(data)
            if self._body_bytes > MOST_BODY_BYTES:
                raise ProtocolError(f"an answer of over {MOST_BODY_BYTES} bytes")
            return events
        for text in sse.feed(data):
            self._event(text, events)
        return events

    def end(self) -> tuple[list[Event], ErrorInfo | None]:
        """The last events, and what is wrong with the end. Raises ProtocolError."""
        events: list[Event] = []
        sse = self._sse
        if sse is not None:
            try:
                for text in sse.end():
                    self._event(text, events)
            except ProtocolError:
                return events, TRUNCATED  # half of an event
        else:
            body, self._body = b"".join(self._body), []
            if not body:
                return events, TRUNCATED
            self._event(body, events)
        if self.error is not None:
            return events, self.error
        return events, None if all(state.finished for state in self._choices) else TRUNCATED

    @property
    def usage(self) -> Usage:
        """Counts as the engine gives them; where it gives none, a token for each piece that came."""
        usage = self._usage
        return usage.neutral() if usage is not None else Usage(completion_tokens=self._pieces)

    def _event(self, text: bytes, events: list[Event]) -> None:
        if self._done or self.error is not None:
            return
        if text == b"[DONE]":
            self._done = True
            return
        try:
            chunk = _CHUNK.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            self.error = error_of_event(text)
            if self.error is None:
                raise ProtocolError(f"no answer of Chat Completions: {error}") from None
            return
        if chunk.error or chunk.object == "error":
            self.error = error_of_event(text) or TRUNCATED
            return
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            self._choice(choice, events)

    def _choice(self, choice: _Choice, events: list[Event]) -> None:
        index = choice.index
        if not 0 <= index < len(self._choices):
            raise ProtocolError(f"a choice {index} that was not asked for")
        state = self._choices[index]
        if state.finished:
            return
        said = choice.delta or choice.message
        scores = self._scores_of(choice.logprobs) if self._scores and choice.logprobs is not UNSET else None
        if said is not None:
            self._said(index, state.calls, said, scores, events)
        if choice.finish_reason is not None:
            self._finish(index, state, choice, events)

    def _said(
        self, index: int, calls: CallOrder, said: _Said, scores: list[TokenLogprob] | None, events: list[Event]
    ) -> None:
        thought = said.reasoning_content or said.reasoning
        before = len(events)
        if thought and isinstance(thought, str):
            if calls.open:
                calls.close(events)
            events.append(ReasoningDelta(index, thought))
        if said.content or scores:
            if calls.open and said.content:
                calls.close(events)
            if said.content or not (thought or said.tool_calls or calls.open):
                events.append(TextDelta(index, said.content or "", scores))
        if said.refusal:
            if calls.open:
                calls.close(events)
            events.append(RefusalDelta(index, said.refusal))
        for piece in said.tool_calls or ():
            function = piece.function or _Function()
            arguments = function.arguments
            if arguments is not None and not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()
            calls.piece(piece.index, piece.id or "", function.name or "", arguments or "", events)
        if len(events) > before:
            self._pieces += 1

    def _finish(self, index: int, state: _ChoiceState, choice: _Choice, events: list[Event]) -> None:
        reason = _REASONS.get(choice.finish_reason or "", FinishReason.STOP)
        if reason is FinishReason.ABORT:
            self.error = ABORTED
            return
        calls = state.calls
        calls.close(events, cut=reason is FinishReason.LENGTH)
        state.finished = True
        matched = choice.stop_reason if choice.stop_reason is not None else choice.matched_stop
        if reason is FinishReason.STOP and len(calls):
            reason = FinishReason.TOOL_CALLS
        if reason is FinishReason.STOP and isinstance(matched, str) and matched in self._stops:
            events.append(Finish(index, FinishReason.STOP_SEQUENCE, matched))
        else:
            events.append(Finish(index, reason))

    def _scores_of(self, raw: Raw) -> list[TokenLogprob] | None:
        try:
            scores = _SCORES.decode(raw).content if bytes(raw) != b"null" else None
        except msgspec.DecodeError as error:
            raise ProtocolError(f"no log probabilities: {error}") from None
        return [_logprob(score) for score in scores] if scores else None


def _logprob(score: _Score) -> TokenLogprob:
    token = score.token.encode("utf-8", "replace")
    if score.bytes is not None and all(0 <= byte < 256 for byte in score.bytes):
        token = bytes(score.bytes)
    return TokenLogprob(token, score.logprob, tuple(_logprob(each) for each in score.top_logprobs or ()))
