"""How much a pool takes at a time; what is beyond waits its turn, in bounds, and is refused beyond those.

Room is made when a request ends or gets its first token, and when a worker becomes a candidate. Then those who wait
go, in one later turn of the event loop, for as long as there is room for the next. A pool without caps has none of
this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from extproc.ir import ErrorInfo, ErrorKind, RequestError
from extproc.routing.fair_queue import FairQueue, Waiting
from extproc.routing.membership import Membership
from extproc.routing.worker import Worker


class Caps(Struct, frozen=True):
    """Of one process. None: no such cap."""

    worker_requests: int | None = None
    worker_tokens: int | None = None  # prompt tokens that wait for a first token
    pool_requests: int | None = None
    pool_tokens: int | None = None
    queue_requests: int = 1000
    queue_tokens: int = 4_000_000
    queue_s: float = 30.0
    retry_after_s: float = 2.0


class Refusal(Enum):
    """Why a request did not get in."""

    FULL = "queue_full"
    TIMEOUT = "queue_timeout"
    DISPLACED = "queue_displaced"  # by a request of a higher priority, in a full queue


class Settles(Protocol):
    """A reservation."""

    def settle(self) -> None:
        """Give everything back."""
        ...


_R = TypeVar("_R", bound=Settles)


class _Ticket(Waiting, Generic[_R]):
    """One who waits."""

    __slots__ = ("came_s", "got", "reserve")

    def __init__(self, tokens: int, tenant: str, priority: int, reserve: Callable[[], _R], came_s: float) -> None:
        super().__init__(tokens, tenant, priority)
        self.reserve = reserve
        self.came_s = came_s
        self.got: asyncio.Future[_R] = asyncio.get_running_loop().create_future()


class _Begun(Generic[_R]):
    """Begins when it is awaited, so that a client which leaves before leaves nothing behind."""

    def __init__(self, begin: Callable[[], Coroutine[None, None, _R]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, _R]:
        return self._begin().__await__()


class Admission(Generic[_R]):
    """Of one pool, in one process."""

    def __init__(
        self,
        caps: Caps,
        members: Membership,
        *,
        waited: Callable[[float], None] = lambda seconds: None,
        refused: Callable[[Refusal], None] = lambda refusal: None,
    ) -> None:
        """`waited` and `refused` are told of everybody who had to wait and of everybody who was sent away."""
        self._caps = caps
        self._members = members
        self._waited = waited
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[_Ticket[_R]] = FairQueue()
        self._arrivals: dict[_Ticket[_R], None] = {}  # who waits, oldest first: all may wait equally long
        self._pump_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        members.candidates_changed = self.freed

    @property
    def waiting_requests(self) -> int:
        """In the queue."""
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of those in the queue."""
        return self._queue.tokens

    def admit(self, tokens: int, tenant: str, priority: int, reserve: Callable[[], _R]) -> _R | Awaitable[_R]:
        """What `reserve` gives: at once where there is room, else when it is this request's turn.

        Raises RequestError (RATE_LIMIT, and whatever `reserve` raises), at once or from the awaitable. An awaitable
        that is cancelled has left the queue, with nothing reserved.
        """
        if not self._queue and self._has_room(tokens):
            return reserve()
        return _Begun(lambda: self._wait(tokens, tenant, priority, reserve))

    def with_room(self, workers: Sequence[Worker], tokens: int) -> list[Worker]:
        """Those that take so many prompt tokens more."""
        return [worker for worker in workers if self._takes(worker, tokens)]

    def _takes(self, worker: Worker, tokens: int) -> bool:
        """A prompt over the cap fits where none wait."""
        caps = self._caps
        if caps.worker_requests is not None and worker.running >= caps.worker_requests:
            return False
        most = caps.worker_tokens
        return most is None or not worker.waiting_tokens or worker.waiting_tokens + tokens <= most

    def freed(self) -> None:
        """There may be room: a request ended or got its first token, or the candidates changed."""
        if self._queue and not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for ticket in list(self._arrivals):
            self._drop(ticket)
            ticket.got.cancel()

    def _has_room(self, tokens: int) -> bool:
        caps = self._caps
        workers = self._members.workers
        if caps.pool_requests is not None and sum([worker.running for worker in workers]) >= caps.pool_requests:
            return False
        if caps.pool_tokens is not None:
            waiting = sum([worker.waiting_tokens for worker in workers])
            if waiting and waiting + tokens > caps.pool_tokens:
                return False
        candidates = self._members.candidates
        if not candidates:
            return True  # who comes is told so, and does not wait
        return any(self._takes(worker, tokens) for worker in candidates)

    def _enqueue(self, tokens: int, tenant: str, priority: int, reserve: Callable[[], _R]) -> _Ticket[_R]:
        caps = self._caps
        queue = self._queue
        while len(queue) >= caps.queue_requests or queue.tokens + tokens > caps.queue_tokens:
            displaced = queue.last_below(priority)
            if displaced is None:
                raise self._refusal(Refusal.FULL)
            self._send_away(displaced, Refusal.DISPLACED)
        ticket = _Ticket(tokens, tenant, priority, reserve, self._loop.time())
        queue.add(ticket)
        self._arrivals[ticket] = None
        if self._timer is None:
            self._timer = self._loop.call_later(caps.queue_s, self._expire)
        return ticket

    async def _wait(self, tokens: int, tenant: str, priority: int, reserve: Callable[[], _R]) -> _R:
        ticket = self._enqueue(tokens, tenant, priority, reserve)
        self.freed()
        got = ticket.got
        try:
            reserved = await got
        except asyncio.CancelledError:
            self._drop(ticket)
            if got.done() and not got.cancelled() and got.exception() is None:
                got.result().settle()  # its turn came while its client left
            self.freed()
            raise
        self._waited(self._loop.time() - ticket.came_s)
        return reserved

    def _pump(self) -> None:
        self._pump_is_due = False
        queue = self._queue
        members = self._members
        # Without candidates who waits goes on waiting: workers come back.
        while members.candidates and (ticket := queue.next()) is not None:
            if ticket.got.cancelled():  # its client left in this turn of the loop
                self._drop(ticket)
                continue
            if not self._has_room(ticket.tokens):
                return
            queue.take(ticket)
            del self._arrivals[ticket]
            self._answer(ticket)

    def _answer(self, ticket: _Ticket[_R]) -> None:
        try:
            ticket.got.set_result(ticket.reserve())
        except Exception as error:  # whatever it is, it is this request's, and nobody else would tell it
            ticket.got.set_exception(error)

    def _expire(self) -> None:
        """Send away who has waited too long. Where no worker is left, that is the reason, and not a full one."""
        self._timer = None
        now_s = self._loop.time()
        for ticket in list(self._arrivals):
            due_s = ticket.came_s + self._caps.queue_s
            if due_s > now_s:
                self._timer = self._loop.call_at(due_s, self._expire)
                break
            if self._members.candidates:
                self._send_away(ticket, Refusal.TIMEOUT)
            else:
                self._drop(ticket)
                if not ticket.got.done():
                    self._answer(ticket)
        self.freed()

    def _send_away(self, ticket: _Ticket[_R], refusal: Refusal) -> None:
        self._drop(ticket)
        if not ticket.got.done():
            ticket.got.set_exception(self._refusal(refusal))

    def _drop(self, ticket: _Ticket[_R]) -> None:
        self._queue.remove(ticket)
        self._arrivals.pop(ticket, None)

    def _refusal(self, refusal: Refusal) -> RequestError:
        self._refused(refusal)
        return RequestError(
            ErrorInfo(
                kind=ErrorKind.RATE_LIMIT,
                message="The workers of this model have as much as they may take. Try again later.",
                code=refusal.value,
                retry_after_s=self._caps.retry_after_s,
            )
        )
