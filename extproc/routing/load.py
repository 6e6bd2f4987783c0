"""What waits and runs on a worker: our own requests, those of other processors, and those of strangers.

The own part is exact in what was sent and what was answered, and estimated in between: the prompt at the head of the
queue is being computed at the worker's pace since it got there, and no further than its end, for its first token has
not come.
"""

from __future__ import annotations

from collections import OrderedDict

from extproc.routing.pace import Pace, PaceMeter

__all__ = ["Work", "WorkerLoad"]

_FADES_IN_S = 2.0  # what engines report of strangers
_ONE_STEP_S = 0.001  # first tokens that come closer together were computed in one step

UNMEASURED = Pace(8_000.0, 0.03)
"""Of a fleet of which nothing has been seen yet: it only has to be the same for all."""


class Work:
    """One request's part of a worker's load. Changed by `WorkerLoad` only."""

    __slots__ = ("silent", "tokens")

    def __init__(self, tokens: int, *, silent: bool) -> None:
        self.tokens = tokens  # of its prompt that the worker must compute
        self.silent = silent  # its first token is not seen, as its answer comes whole


class WorkerLoad:
    """Of one worker, as one processor sees it. Times are on one clock, that of the caller."""

    __slots__ = (
        "_exact",
        "_foreign_s",
        "_foreign_tokens",
        "_group_s",
        "_group_tokens",
        "_queue",
        "_seen_tokens",
        "_sent_s",
        "_since_s",
        "decoding",
        "expected",
        "kv_fill",
        "meter",
        "peer_tokens",
        "queued_tokens",
    )

    def __init__(self) -> None:
        self._queue: OrderedDict[Work, None] = OrderedDict()
        self._since_s = 0.0  # since when the head of the queue is computed
        self._exact = True  # that is known to the step, and not guessed
        self._sent_s = 0.0  # the last dispatch
        self._group_tokens = 0  # of the prompts whose first tokens came last, together
        self._group_s = 0.0  # what they took
        self._foreign_tokens = 0.0
        self._foreign_s = 0.0
        self._seen_tokens = 1_000.0  # of a prompt, on average
        self.queued_tokens = 0  # uncached, of prompts without a first token
        self.decoding = 0  # requests that have had one
        self.peer_tokens = 0  # uncached prompt tokens that wait here, sent by other processors
        self.meter = PaceMeter()
        self.expected = UNMEASURED
        """The pool's typical pace, for a worker that is not measured yet."""
        self.kv_fill = 0.0
        """How much of its KV cache has been used so far: below 1.0 it need not evict yet."""

    @property
    def pace(self) -> Pace:
        """Measured, or what is typical of its pool."""
        return self.meter.pace or self.expected

    def backlog_tokens(self, now_s: float) -> float:
        """Uncached prompt tokens that must be computed before a prompt that comes now. Hot."""
        tokens: float = self.queued_tokens
        if tokens:
            head = next(iter(self._queue))
            done = (now_s - self._since_s) * self.pace.tokens_per_s
            if head.silent and done >= head.tokens:
                self._advance(done)
                return self.backlog_tokens(now_s)
            tokens -= done if done < head.tokens else head.tokens
        tokens += self.peer_tokens
        if self._foreign_tokens:
            left = 1.0 - (now_s - self._foreign_s) / _FADES_IN_S
            if left > 0.0:
                tokens += self._foreign_tokens * left
            else:
                self._foreign_tokens = 0.0
        return tokens

    def _advance(self, done: float) -> None:
        """The first of the queue must have been computed by now, and nothing will tell. `done`: tokens since then."""
        tokens_per_s = self.pace.tokens_per_s
        while self._queue and (head := next(iter(self._queue))).silent and done >= head.tokens:
            done -= head.tokens
            self._since_s += head.tokens / tokens_per_s
            self._pop(head)
        self._exact = False

    def sent(self, tokens: int, now_s: float, *, silent: bool = False) -> Work:
        """A prompt with so many uncached tokens goes to the worker. `silent`: its first token will not be seen."""
        work = Work(tokens, silent=silent)
        self._seen_tokens += 0.05 * (tokens - self._seen_tokens)
        if not self._queue:
            self._since_s = now_s
            self._exact = True
        self._queue[work] = None
        self.queued_tokens += tokens
        self._sent_s = now_s
        return work

    def first_token(self, work: Work, now_s: float, computed: int | None = None) -> None:
        """Its first token has come. `computed`: prompt tokens that really had to be computed, where the engine says."""
        queue = self._queue
        if work not in queue:
            return
        before = 0
        while (head := next(iter(queue))).silent and head is not work:
            before += head.tokens  # prompts are computed in order, so it is done as well
            self._pop(head)
        self._pop(work)
        if head is work and not work.silent:
            self._measure(before + (work.tokens if computed is None else computed), now_s)
            self._since_s = now_s
        elif head is work:
            self._since_s = now_s
            self._exact = False

    def _pop(self, work: Work) -> None:
        del self._queue[work]
        self.queued_tokens -= work.tokens
        self.decoding += 1

    def _measure(self, tokens: int, now_s: float) -> None:
        took_s = now_s - self._since_s if self._exact else 0.0
        if self._exact and took_s < _ONE_STEP_S:
            self._group_tokens += tokens
            return
        if self._group_s and not self._foreign_tokens and not self.peer_tokens:
            self.meter.add(self._group_tokens, self._group_s, self.pace, now_s)
        self._group_tokens = tokens
        self._group_s = took_s
        self._exact = True

    def ended(self, work: Work, now_s: float) -> None:
        """The request is over, or goes elsewhere."""
        if work in self._queue:
            if next(iter(self._queue)) is work:
                self._since_s = now_s  # the next one's turn, which perhaps began before
                self._exact = False
            self._pop(work)
        self.decoding -= 1

    def reported(self, asked_s: float, now_s: float, *, requests: int, tokens: int | None = None) -> None:
        """The engine says that so many requests wait, or prompts of so many uncached tokens; it was asked at `asked_s`.

        What nobody known has sent is strangers' load. A report from before our last dispatch says nothing: it lacks
        what we know, or has it already, and nobody can tell.
        """
        if asked_s <= self._sent_s:
            return
        self._foreign_tokens = 0.0
        known = self.backlog_tokens(now_s)
        if tokens is not None:
            strange = tokens - known
        else:
            strange = (requests - len(self._queue)) * self._seen_tokens - self.peer_tokens
        self._foreign_tokens = max(strange, 0.0)
        self._foreign_s = now_s
