"""Keeps workers' states true by asking their engines, each at its own pace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from time import monotonic

from extproc.routing.engine_loops import EngineLoops
from extproc.routing.membership import Membership
from extproc.routing.worker import Worker, WorkerState

_log = logging.getLogger(__name__)


class Verdict(Enum):
    """What came of one check."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"  # it says so, or does not answer in time
    GONE = "gone"  # nobody listens there: what comes back will be another process


Check = Callable[[str], Awaitable[Verdict]]
"""Asks the engine at an address; answers within its own time-out and never raises."""


class HealthChecks(EngineLoops):
    """One loop per engine of a pool, an `Observer` of its membership: the ranks of an engine share its state.

    An engine is ready after some good checks in a row, out after some failed ones. One that was gone, for however
    short a time, has restarted.
    """

    def __init__(
        self, members: Membership, check: Check, *, interval_s: float, healthy_after: int, unhealthy_after: int
    ) -> None:
        super().__init__()
        self._members = members
        self._check = check
        self._interval_s = interval_s
        self._healthy_after = healthy_after
        self._unhealthy_after = unhealthy_after

    def joined(self, worker: Worker) -> None:
        """Begin to check it, or take the state of its engine's other ranks."""
        ranks = self._workers.get(worker.address)
        if ranks:
            worker.state = ranks[0].health
        super().joined(worker)

    def restarted(self, worker: Worker) -> None:
        """Nothing changes for its checks."""

    async def watch(self, address: str, ranks: list[Worker]) -> None:
        """Check it for ever."""
        good = bad = 0
        seen = gone = False
        while True:
            verdict = await self._check(address)
            if verdict is Verdict.HEALTHY:
                good, bad = good + 1, 0
                if gone and seen:
                    _log.warning("worker %s at %s has restarted", ranks[0].label, address)
                    for worker in list(ranks):
                        self._members.restarted(worker)
                gone, seen = False, True
                if ranks[0].health is not WorkerState.READY and good >= self._healthy_after:
                    # Envoy must know an endpoint before anybody is sent there.
                    await asyncio.sleep(max(ranks[0].not_before_s - monotonic(), 0.0))
                    self._set(ranks, WorkerState.READY)
            else:
                good, bad = 0, bad + 1
                gone = gone or verdict is Verdict.GONE
                if ranks[0].health is WorkerState.READY and bad >= self._unhealthy_after:
                    self._set(ranks, WorkerState.UNHEALTHY)
            await self.pause(self._interval_s)

    def _set(self, ranks: list[Worker], state: WorkerState) -> None:
        log = _log.info if state is WorkerState.READY else _log.warning
        with self._members.together():
            for worker in ranks:
                named = "" if worker.label == worker.address else f" at {worker.address}"
                log("worker %s%s is %s", worker.label, named, state.value)
                worker.state = state
