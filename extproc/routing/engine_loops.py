"""One loop for each engine of a pool: what health checks and load readers have in common."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from extproc.routing.worker import Worker

__all__ = ["EngineLoops"]

_log = logging.getLogger(__name__)


class EngineLoops(ABC):
    """An `Observer` of a pool's membership that runs `watch` for each engine; an engine's ranks share it."""

    def __init__(self) -> None:
        self._workers: dict[str, list[Worker]] = {}  # the ranks at each address
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @abstractmethod
    async def watch(self, address: str, ranks: list[Worker]) -> None:
        """Until it is cancelled, when the last of its ranks has left. `ranks` is kept up to date."""

    def joined(self, worker: Worker) -> None:
        """Begin, with the engine's first rank."""
        ranks = self._workers.setdefault(worker.address, [])
        ranks.append(worker)
        if worker.address not in self._tasks:
            task = self._tasks[worker.address] = asyncio.ensure_future(self.watch(worker.address, ranks))
            task.add_done_callback(self._ended)

    @staticmethod
    async def pause(interval_s: float) -> None:
        """About so long: spread, so that a large fleet is not asked all at once."""
        await asyncio.sleep(interval_s * (0.9 + 0.2 * random.random()))  # noqa: S311

    @abstractmethod
    def restarted(self, worker: Worker) -> None:
        """The engine has begun anew; its loop goes on."""

    def left(self, worker: Worker) -> None:
        """End, with the engine's last rank."""
        ranks = self._workers[worker.address]
        ranks.remove(worker)
        if not ranks:
            del self._workers[worker.address]
            self._tasks.pop(worker.address).cancel()

    async def stop(self) -> None:
        """End all loops."""
        tasks = list(self._tasks.values())
        self._tasks = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: nothing asks an engine any more", type(self).__name__, exc_info=error)
