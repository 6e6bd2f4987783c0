"""Keeps workers' states true by asking them, each at its own pace."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from extproc.routing.worker import Worker, WorkerState

_log = logging.getLogger(__name__)

Check = Callable[[str], Awaitable[bool]]
"""Asks the worker at an address whether it is healthy; answers within its own time-out and never raises."""


class HealthChecks:
    """One loop per worker. A worker is ready after some good checks in a row, out after some failed ones."""

    def __init__(
        self,
        workers: Sequence[Worker],
        check: Check,
        *,
        interval_s: float,
        healthy_after: int,
        unhealthy_after: int,
        changed: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        self._workers = workers
        self._check = check
        self._interval_s = interval_s
        self._healthy_after = healthy_after
        self._unhealthy_after = unhealthy_after
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin checking."""
        self._tasks = [asyncio.ensure_future(self._watch(worker)) for worker in self._workers]

    async def stop(self) -> None:
        """End all loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _watch(self, worker: Worker) -> None:
        good = bad = 0
        while True:
            if await self._check(worker.address):
                good, bad = good + 1, 0
                if worker.state is not WorkerState.READY and good >= self._healthy_after:
                    self._set(worker, WorkerState.READY)
            else:
                good, bad = 0, bad + 1
                if worker.state is WorkerState.READY and bad >= self._unhealthy_after:
                    self._set(worker, WorkerState.UNHEALTHY)
            # Spread, so that the checks of a large fleet do not come all at once.
            await asyncio.sleep(self._interval_s * (0.9 + 0.2 * random.random()))  # noqa: S311

    def _set(self, worker: Worker, state: WorkerState) -> None:
        log = _log.info if state is WorkerState.READY else _log.warning
        named = "" if worker.label == worker.address else f" at {worker.address}"
        log("worker %s%s is %s", worker.label, named, state.value)
        worker.state = state
        self._changed(worker)
