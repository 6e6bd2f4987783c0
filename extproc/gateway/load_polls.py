"""Asks engines by their protocol's own call what waits and runs on them, so that strangers' requests count too."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from time import monotonic

import grpc.aio

from extproc.engines.control import ControlError, RankLoad, WorkerControl, open_channel
from extproc.routing.pool import Pool
from extproc.routing.worker import ReportedLoad, Worker

_log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0


class LoadPolls:
    """One loop per engine of a pool, an `Observer`. Engines without the call are asked once and left alone."""

    def __init__(self, pool: Pool, engine: str, interval_s: float) -> None:
        """`engine`: the protocol."""
        self._pool = pool
        self._engine = engine
        self._interval_s = interval_s
        self._workers: dict[str, list[Worker]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def joined(self, worker: Worker) -> None:
        """Begin to ask."""
        self._workers.setdefault(worker.address, []).append(worker)
        if worker.address not in self._tasks:
            self._tasks[worker.address] = asyncio.ensure_future(self._watch(worker.address))

    def restarted(self, worker: Worker) -> None:
        """The next answer will tell."""

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

    async def _watch(self, address: str) -> None:
        ranks = self._workers[address]
        async with open_channel(address) as channel:
            await self._ask(ranks, channel, address)

    async def _ask(self, ranks: Sequence[Worker], channel: grpc.aio.Channel, address: str) -> None:
        control = WorkerControl(address, channel, self._engine)
        while True:
            # Spread, so that a large fleet is not asked all at once.
            await asyncio.sleep(self._interval_s * (0.9 + 0.2 * random.random()))  # noqa: S311
            asked_s = monotonic()
            try:
                loads = await control.loads(_TIMEOUT_S)
            except ControlError as error:
                _log.debug("%s", error)  # health checks say it louder
                continue
            if loads is None:
                _log.info("worker %s does not report its load", ranks[0].label)
                return
            now_s = monotonic()
            for worker in ranks:
                for load in loads:
                    if load.rank == (worker.rank or 0):
                        self._take(worker, load, asked_s, now_s)

    def _take(self, worker: Worker, load: RankLoad, asked_s: float, now_s: float) -> None:
        worker.reported = ReportedLoad(asked_s, load.waiting_requests, load.running_requests, load.kv_usage)
        worker.load.reported(asked_s, now_s, requests=load.waiting_requests, tokens=load.waiting_uncached_tokens)
        prefixes = self._pool.prefixes
        if prefixes is not None:
            prefixes.holds_tokens(worker, load.kv_tokens)
