"""An engine's tokens, choice by choice, to the events that dialects render.

Per choice: ids → text (incremental detokenizing) → stop strings → reasoning and tool calls → deltas. Counting tokens
stays with the engine's decoder, but for those of the reasoning, which only this can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from extproc.engines.base import Ended, EngineEvent, ProtocolError, Tokens, TokenScores
from extproc.ir import UNSET, Event, Finish, FinishReason, Sampling, TextDelta, TokenLogprob
from extproc.output.reader import AnswerReader, Reading
from extproc.output.stop import StopMatcher, StopStrings


class Detokenizer(Protocol):
    """One choice's ids to text. The pieces add up to what decoding all ids at once gives."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that is certain now."""
        ...

    def finish(self) -> str:
        """What is left of it when no id follows."""
        ...


class TokenTexts(Protocol):
    """What a tokenizer offers here."""

    def detokenizer(self, *, skip_special_tokens: bool, shown: tuple[str, ...] = ()) -> Detokenizer:
        """For one choice. `shown`: special tokens that are not skipped."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, which may be part of a character."""
        ...


class AnswerText:
    """All choices of one answer."""

    __slots__ = ("_choices", "_plain", "_unfinished", "aborted", "finished", "reasoning_tokens")

    def __init__(self, sampling: Sampling, tokens: TokenTexts, reading: Reading | None = None) -> None:
        """Without a `reading` the text is the answer as it stands."""
        skip = sampling.skip_special_tokens
        self.reasoning_tokens = 0
        """Of all choices together."""
        self.finished = False
        """Every choice has ended, by the engine's word or by a stop string: nothing more is wanted."""
        self.aborted = False
        """The engine gave up at least one choice."""
        # Without any of these a choice is its detokenizer alone.
        self._plain = not (sampling.stop or sampling.stop_token_ids or sampling.top_logprobs is not None or reading)
        stops = StopStrings(sampling.stop) if sampling.stop else None
        self._choices: list[_Choice | None] = [
            _Choice(
                index,
                sampling,
                stops,
                tokens,
                tokens.detokenizer(skip_special_tokens=skip, shown=reading.shown if reading else ()),
                None if reading is None else AnswerReader(reading, index),
            )
            for index in range(sampling.n)
        ]
        self._unfinished = sampling.n

    def feed(self, engine_events: list[EngineEvent]) -> list[Event]:
        """What the engine's events mean for the client. Of a choice that has finished nothing comes any more.

        Hot: once per piece of the engine's answer. Raises ProtocolError for a choice that was not asked for.
        """
        events: list[Event] = []
        choices = self._choices
        plain = self._plain
        for event in engine_events:
            index = event.choice
            if not 0 <= index < len(choices):
                raise ProtocolError(f"choice {index} of {len(choices)}")
            choice = choices[index]
            if choice is None:
                continue
            if type(event) is Tokens:
                if plain:
                    text = choice.detokenizer.feed(event.ids)
                    if text:
                        events.append(TextDelta(index, text))
                    continue
                finish = choice.tokens(event, events)
            else:
                assert type(event) is Ended
                finish = choice.ended(event, events)
            if finish is not None:
                choice.finish(finish, events)
                self.reasoning_tokens += choice.reasoning_tokens
                choices[index] = None
                self._unfinished -= 1
                self.finished = not self._unfinished
                if finish.reason is FinishReason.ABORT:
                    self.aborted = True
        return events


_ENDS_WITH_CALLS = frozenset((FinishReason.STOP, FinishReason.STOP_SEQUENCE))


class _Choice:
    """One choice: its text so far, what is held back of it, and the log probabilities that wait for their text."""

    __slots__ = (
        "_end_ids",
        "_entries",
        "_index",
        "_matcher",
        "_reader",
        "_received",
        "_sampling",
        "_sent",
        "_tokens",
        "_unmatched_tokens",
        "_waiting",
        "detokenizer",
        "reasoning_tokens",
    )

    def __init__(
        self,
        index: int,
        sampling: Sampling,
        stops: StopStrings | None,
        tokens: TokenTexts,
        detokenizer: Detokenizer,
        reader: AnswerReader | None,
    ) -> None:
        self._index = index
        self._sampling = sampling
        self._tokens = tokens
        self.detokenizer = detokenizer
        self._reader = reader
        self.reasoning_tokens = 0
        self._waiting: list[TokenLogprob] = []  # log probabilities of text that the reader holds back
        self._matcher = None if stops is None else StopMatcher(stops, include_stop=sampling.include_stop)
        # A stop token is among the ids, but its text is not the answer's.
        self._end_ids: Collection[int] = () if sampling.include_stop else frozenset(sampling.stop_token_ids)
        # Stop strings count from here on, as in the engine.
        self._unmatched_tokens = 0 if sampling.min_tokens is UNSET else sampling.min_tokens
        self._received = 0  # characters detokenized, held back or not
        self._sent = 0  # characters sent
        self._entries: list[tuple[int, TokenLogprob]] | None = [] if sampling.top_logprobs is not None else None

    def tokens(self, event: Tokens, events: list[Event]) -> Finish | None:
        """Text and log probabilities of new tokens."""
        ids = event.ids
        if self._end_ids and ids and ids[-1] in self._end_ids:
            ids = ids[:-1]
        if self._entries is not None and event.scores is not None:
            # One by one, so that it is known at which character each token begins.
            for token_id, scores in zip(ids, event.scores, strict=False):
                self._entries.append((self._received, self._logprob(scores)))
                one = (token_id,)
                finish = self._ids(one, events) if self._reader is None else self._read_ids(one, events)
                if finish is not None:
                    return finish
            ids = ids[len(event.scores) :]
        return self._ids(ids, events) if self._reader is None else self._read_ids(ids, events)

    def ended(self, event: Ended, events: list[Event]) -> Finish:
        """The rest of the text, and why it ends."""
        finish = self._text(self.detokenizer.finish(), events)
        if finish is not None:
            return finish
        if self._matcher is not None:
            held = self._matcher.finish()
            matched = event.stop_string
            if matched is not None and (at := held.find(matched)) >= 0:
                held = held[: at + len(matched) if self._sampling.include_stop else at]
            self._send(held, events)
        return Finish(self._index, event.reason, event.stop_string)

    def finish(self, finish: Finish, events: list[Event]) -> None:
        """The end itself, behind what the reader still held."""
        reader = self._reader
        if reader is not None and finish.reason is not FinishReason.ABORT:
            self._add(reader.finish(), [], events, was_text=reader.in_text)
            if reader.calls and finish.reason in _ENDS_WITH_CALLS:
                finish = Finish(self._index, FinishReason.TOOL_CALLS)
        events.append(finish)

    def _read_ids(self, ids: Sequence[int], events: list[Event]) -> Finish | None:
        """Where reasoning may come, its tokens are counted, one by one for the last of them."""
        reader = self._reader
        assert reader is not None
        for at, token_id in enumerate(ids):
            if not reader.may_reason:
                if reader.idle and self._entries is None:
                    self._reader = None  # it would only cost from here on
                return self._ids(ids[at:], events)
            before = reader.in_reasoning
            finish = self._ids((token_id,), events)
            if before or reader.in_reasoning:
                self.reasoning_tokens += 1
            if finish is not None:
                return finish
        return None

    def _ids(self, ids: Sequence[int], events: list[Event]) -> Finish | None:
        free = self._unmatched_tokens
        if free and self._matcher is not None:
            self._unmatched_tokens = max(0, free - len(ids))
            text = self.detokenizer.feed(ids[:free])
            self._received += len(text)
            self._send(text, events)
            ids = ids[free:]
        return self._text(self.detokenizer.feed(ids), events) if ids else None

    def _text(self, text: str, events: list[Event]) -> Finish | None:
        if not text:
            return None
        self._received += len(text)
        matcher = self._matcher
        if matcher is None:
            self._send(text, events)
            return None
        safe, matched = matcher.feed(text)
        self._send(safe, events)
        return None if matched is None else Finish(self._index, FinishReason.STOP_SEQUENCE, matched)

    def _send(self, text: str, events: list[Event]) -> None:
        """A delta, with the log probabilities of all tokens that begin before its end.

        So a token is reported with its first character, a cut one too, and none whose text is never sent.
        """
        if not text:
            return
        self._sent += len(text)
        logprobs: list[TokenLogprob] | None = None
        entries = self._entries
        if entries is not None:
            ready = 0
            for begin, _ in entries:
                if begin >= self._sent:
                    break
                ready += 1
            if ready:
                logprobs = [entry for _, entry in entries[:ready]]
                del entries[:ready]
        reader = self._reader
        if reader is None:
            events.append(TextDelta(self._index, text, logprobs))
        elif entries is None:
            events += reader.feed(text)
        else:
            was_text = reader.in_text
            self._add(reader.feed(text), logprobs or [], events, was_text=was_text)

    def _add(self, found: list[Event], logprobs: list[TokenLogprob], events: list[Event], *, was_text: bool) -> None:
        """What the reader found. Log probabilities are the text's alone: those of reasoning and calls are dropped."""
        events += found
        if self._entries is None:
            return
        self._waiting += logprobs
        for event in reversed(found):
            if type(event) is TextDelta:
                event.logprobs = self._waiting
                self._waiting = []
                return
        if found or not was_text:
            self._waiting = []

    def _logprob(self, scores: TokenScores) -> TokenLogprob:
        token_bytes = self._tokens.token_bytes
        count = self._sampling.top_logprobs or 0
        top = tuple(TokenLogprob(token_bytes(token_id), value) for token_id, value in scores.top[:count])
        return TokenLogprob(token_bytes(scores.token_id), scores.logprob, top)
