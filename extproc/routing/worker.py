"""One target of routing: an engine at an address, or one data-parallel rank of it, and what we know of its state."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from extproc.routing.breaker import Breaker, BreakerState
from extproc.routing.load import WorkerLoad


class WorkerState(Enum):
    """Only READY workers are candidates, and only while their breaker allows."""

    STARTING = "starting"  # not seen healthy yet
    READY = "ready"
    DRAINING = "draining"  # gets no new requests, and will go or come back as the operator says
    UNHEALTHY = "unhealthy"


class ReportedLoad(Struct, frozen=True):
    """What an engine says of itself. None: it does not say, which is not the same as 0."""

    asked_s: float  # when the question was sent, on the clock of time.monotonic
    waiting_requests: int | None
    running_requests: int | None
    kv_usage: float | None  # of its KV cache, 0 to 1


def _nobody() -> None:
    """No membership looks after this worker."""


class Worker:
    """A target, with the load that this process has put on it.

    Ranks of one engine share its address, and each has its own load, breaker and cache. `waiting_tokens`,
    `running` and `load` change only through a Reservation.
    """

    __slots__ = (
        "_changed",
        "_draining",
        "_health",
        "address",
        "breaker",
        "incarnation",
        "label",
        "load",
        "not_before_s",
        "rank",
        "ready_since_s",
        "reported",
        "running",
        "waiting_tokens",
    )

    def __init__(self, label: str, address: str, rank: int | None = None) -> None:
        """`address`: `ip:port`, IPv6 in brackets, exactly as it stands in Envoy's endpoints. `rank`: None if one."""
        self.label = label
        self.address = address
        self.rank = rank
        self.incarnation = 0
        """Goes up when the engine has restarted: what was known of its cache is void then."""
        self.waiting_tokens = 0  # prompt tokens dispatched and not yet answered by a first token
        self.running = 0  # requests dispatched and not yet ended
        self.load = WorkerLoad()  # what of the prompts must be computed, and how fast
        self.reported: ReportedLoad | None = None
        self.not_before_s = 0.0  # on the clock of time.monotonic: no candidate before, for Envoy does not know it yet
        self.ready_since_s: float | None = None  # on the clock of time.monotonic; only while a slow start is on
        self.breaker: Breaker | None = None
        self._health = WorkerState.STARTING
        self._draining = False
        self._changed: Callable[[], None] = _nobody

    @property
    def state(self) -> WorkerState:
        """Draining, or what health checks say."""
        return WorkerState.DRAINING if self._draining else self._health

    @state.setter
    def state(self, state: WorkerState) -> None:
        """What health checks say; with DRAINING, the operator."""
        if state is WorkerState.DRAINING:
            self._draining = True
        else:
            self._health = state
        self._changed()

    @property
    def health(self) -> WorkerState:
        """What health checks say, also of one that drains."""
        return self._health

    @property
    def draining(self) -> bool:
        """Whether it gets no new requests by the operator's will."""
        return self._draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        if draining is not self._draining:
            self._draining = draining
            self._changed()

    @property
    def selectable(self) -> bool:
        """Whether it may be chosen now."""
        if self._draining or self._health is not WorkerState.READY:
            return False
        breaker = self.breaker
        return breaker is None or breaker.allows

    @property
    def on_trial(self) -> bool:
        """Its breaker is half-open: it gets one request, and none as another's retry."""
        breaker = self.breaker
        return breaker is not None and breaker.state is not BreakerState.CLOSED

    def watch(self, changed: Callable[[], None]) -> None:
        """`changed` is called when `selectable` may have."""
        self._changed = changed

    def __repr__(self) -> str:
        return f"Worker({self.label} at {self.address}, {self.state.value})"
