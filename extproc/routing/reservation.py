"""A reservation: what one request takes of one worker, from the choice until it is settled.

It has one owner, the exchange that made it, and is settled exactly once whatever happens: end, error, Envoy's own
reply, cancel or deadline. It has three effects on its worker, which move and end together: the load of the request, the
breaker's opinion, and what the worker's KV cache is thought to hold.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from extproc.routing.facts import RouteFacts
from extproc.routing.prefixes import varints_of
from extproc.routing.worker import Worker

if TYPE_CHECKING:
    from extproc.routing.pool import Pool


class Candidate(Struct, frozen=True, omit_defaults=True):
    """A worker as the policy saw it."""

    worker: str
    waiting_tokens: int  # prompt tokens dispatched and not yet answered
    running: int
    cached_tokens: int = 0  # of this prompt
    backlog_tokens: int = 0  # to be computed before this prompt, as estimated
    estimate_ms: float | None = None  # to the first token


class Decision(Struct, frozen=True, omit_defaults=True):
    """Why a worker was chosen: for operators who ask, never for other clients."""

    pool: str
    worker: str
    address: str
    policy: str
    rule: str  # by which it was chosen: one of the policy's reasons
    reason: str  # in words
    prompt_tokens: int
    candidates: tuple[Candidate, ...]  # the first few in the policy's order
    others: int = 0  # candidates that are not shown


class Reservation:
    """Load that one request puts on a worker, and blocks that it leaves there."""

    __slots__ = (
        "_estimate_s",
        "_facts",
        "_known",
        "_pool",
        "_rest",
        "_sent_s",
        "_settled",
        "_told",
        "_trial",
        "_waiting",
        "_work",
        "destinations",
        "generated",
        "prompt_tokens",
        "worker",
    )

    def __init__(
        self, pool: Pool, worker: Worker, destinations: str, facts: RouteFacts, estimate_s: float | None
    ) -> None:
        """`destinations`: addresses in the order of preference, separated by commas, as Envoy takes them.

        `estimate_s`: until the first token, where the policy says.
        """
        self.worker = worker
        self.destinations = destinations
        self.prompt_tokens = facts.prompt_tokens
        self.generated: array[int] | None = None
        """Where the answer's ids belong, as unsigned 32 bits; None where nobody wants them."""
        self._pool = pool
        self._facts = facts
        self._estimate_s = estimate_s
        self._rest: tuple[int, bytes] | None = None
        prefixes = pool.prefixes
        if prefixes is not None and facts.hashes is not None and prefixes.learns_answers:
            self.generated = array("I")
            self._rest = prefixes.rest(facts)
        facts.forget_ids()
        self._waiting = True
        self._settled = False
        self._trial = False
        self._known = 0
        self._told = 0  # blocks at the prompt's start
        self._take(worker, facts.now_s)

    def served_by(self, address: str) -> bool:
        """The host that really serves, perhaps after a retry: the load moves there. False if the pool has no such."""
        if address == self.worker.address:
            return True
        worker = self._pool.members.find(address)
        if self._settled or worker is None:
            return worker is not None
        # Envoy has tried again, so the one before could not be reached or refused.
        self.failed()
        self._give_back(served=False)
        self._estimate_s = None
        self._take(worker, self._pool.clock())
        if self._pool.admission is not None:
            self._pool.admission.freed()  # the one before has room again
        return True

    def first_token(self, cached_tokens: int = 0) -> None:
        """The prompt has been processed: its tokens wait no more. `cached_tokens`: as the engine says, if above 0."""
        if self._waiting and not self._settled:
            self._waiting = False
            worker = self.worker
            worker.waiting_tokens -= self.prompt_tokens
            pool = self._pool
            now_s = pool.clock()
            worker.load.first_token(self._work, now_s, self.prompt_tokens - cached_tokens if cached_tokens else None)
            if self._estimate_s is not None and self._facts.streams:
                pool.estimate_seen(self._estimate_s, now_s - self._sent_s)
            if self._trial:
                self.succeeded()
            if pool.admission is not None:
                pool.admission.freed()

    def answer_headers(self) -> Sequence[tuple[str, str]]:
        """What the policy wants the client to get with the answer of the worker that serves."""
        return self._pool.policy.answer_headers(self.worker, self._facts)

    def succeeded(self) -> None:
        """The worker has done its part."""
        breaker = self.worker.breaker
        if breaker is not None:
            breaker.succeeded(trial=self._trial)
            self._trial = False

    def failed(self) -> None:
        """The worker has not, and it is its own fault: no connection, an answer of 5xx, a stream that breaks."""
        breaker = self.worker.breaker
        if breaker is not None:
            breaker.failed(trial=self._trial)
            self._trial = False

    def settle(self) -> None:
        """The request is over. Idempotent, so that every way out may call it."""
        if not self._settled:
            self._settled = True
            self._give_back(served=not self._waiting)
            if self._trial:
                breaker = self.worker.breaker
                assert breaker is not None
                breaker.unknown()
            if self._pool.admission is not None:
                self._pool.admission.freed()

    def _take(self, worker: Worker, now_s: float) -> None:
        self.worker = worker
        self._sent_s = now_s
        worker.running += 1
        breaker = worker.breaker
        self._trial = breaker is not None and breaker.begins()
        facts = self._facts
        uncached = facts.prompt_tokens - facts.cached_tokens(worker)
        self._work = worker.load.sent(uncached, now_s, silent=not facts.streams)
        if self._waiting:
            worker.waiting_tokens += self.prompt_tokens
        else:
            worker.load.first_token(self._work, now_s)
        prefixes = self._pool.prefixes
        if prefixes is not None and facts.hashes is not None:
            # What its KV events say that it holds need not be guessed, and forgotten again.
            self._told = facts.precise.get(worker, 0) // facts.block_tokens if worker in prefixes.with_events else 0
            self._known = prefixes.sent(worker, facts.hashes[self._told :] if self._told else facts.hashes)

    def _give_back(self, *, served: bool) -> None:
        worker = self.worker
        worker.running -= 1
        if self._waiting:
            worker.waiting_tokens -= self.prompt_tokens
        worker.load.ended(self._work, self._pool.clock())
        facts = self._facts
        prefixes = self._pool.prefixes
        if prefixes is None or facts.hashes is None:
            return
        if not served:
            prefixes.not_sent(worker, facts.hashes[self._told :], self._known)
        elif worker in prefixes.with_events:
            prefixes.forgets(worker, facts.hashes[self._told :])
        elif self._rest is not None and self.generated is not None:
            parent, rest = self._rest
            prefixes.answered(worker, parent, varints_of(rest, self.generated.tobytes()))
