"""Asks engines by their protocol's own call what waits and runs on them, so that strangers' requests count too."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

import grpc.aio

from extproc.engines.control import ControlError, RankLoad, WorkerControl, open_channel
from extproc.routing.engine_loops import EngineLoops
from extproc.routing.pool import Pool
from extproc.routing.worker import ReportedLoad, Worker

_log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0


class LoadPolls(EngineLoops):
    """One loop per engine of a pool, an `Observer`. Engines without the call are asked once and left alone."""

    def __init__(self, pool: Pool, engine: str, interval_s: float) -> None:
        """`engine`: the protocol."""
        super().__init__()
        self._pool = pool
        self._engine = engine
        self._interval_s = interval_s

    def restarted(self, worker: Worker) -> None:
        """What it said is void."""
        worker.reported = None

    async def watch(self, address: str, ranks: list[Worker]) -> None:
        """Ask it for ever, or once."""
        async with open_channel(address) as channel:
            await self._ask(ranks, channel, address)

    async def _ask(self, ranks: Sequence[Worker], channel: grpc.aio.Channel, address: str) -> None:
        control = WorkerControl(address, channel, self._engine)
        while True:
            await self.pause(self._interval_s)
            asked_s = monotonic()
            try:
                loads = await control.loads(_TIMEOUT_S)
            except ControlError as error:
                _log.debug("%s", error)  # health checks say it louder
                loads = []
            for worker in ranks if not loads else ():
                worker.reported = None
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
