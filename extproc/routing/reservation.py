"""A reservation: what one request takes of one worker, from the choice until it is settled.

It has one owner, the exchange that made it, and is settled exactly once whatever happens: end, error, Envoy's own
reply, cancel or deadline.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from extproc.routing.worker import Worker


class Candidate(Struct, frozen=True):
    """A worker as the policy saw it."""

    worker: str
    waiting_tokens: int
    running: int


class Decision(Struct, frozen=True):
    """Why a worker was chosen: for operators who ask, never for other clients."""

    pool: str
    worker: str
    address: str
    policy: str
    reason: str
    prompt_tokens: int
    candidates: tuple[Candidate, ...]  # the first few in the policy's order


class Reservation:
    """Load that one request puts on a worker."""

    __slots__ = ("_find", "_freed", "_settled", "_trial", "_waiting", "destinations", "prompt_tokens", "worker")

    def __init__(
        self,
        worker: Worker,
        destinations: str,
        prompt_tokens: int,
        find: Callable[[str], Worker | None],
        freed: Callable[[], None] | None = None,
    ) -> None:
        """`destinations`: addresses in the order of preference, separated by commas, as Envoy takes them.

        `freed` is called when a worker has room again.
        """
        self.worker = worker
        self.destinations = destinations
        self.prompt_tokens = prompt_tokens
        self._find = find
        self._freed = freed
        breaker = worker.breaker
        self._trial = breaker is not None and breaker.begins()
        self._waiting = True
        self._settled = False
        worker.running += 1
        worker.waiting_tokens += prompt_tokens

    def served_by(self, address: str) -> bool:
        """The host that really serves, perhaps after a retry: the load moves there. False if the pool has no such."""
        if address == self.worker.address:
            return True
        worker = self._find(address)
        if self._settled or worker is None:
            return worker is not None
        # Envoy has tried again, so the one before could not be reached or refused.
        self.failed()
        self._release()
        self.worker = worker
        worker.running += 1
        if self._waiting:
            worker.waiting_tokens += self.prompt_tokens
        return True

    def first_token(self) -> None:
        """The prompt has been processed: its tokens wait no more."""
        if self._waiting and not self._settled:
            self._waiting = False
            self.worker.waiting_tokens -= self.prompt_tokens
            if self._trial:
                self.succeeded()
            if self._freed is not None:
                self._freed()

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
            self._release()
            self._settled = True
            if self._trial:
                breaker = self.worker.breaker
                assert breaker is not None
                breaker.unknown()
            if self._freed is not None:
                self._freed()

    def _release(self) -> None:
        self.worker.running -= 1
        if self._waiting:
            self.worker.waiting_tokens -= self.prompt_tokens
