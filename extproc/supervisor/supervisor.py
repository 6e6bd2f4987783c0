"""Several processes that serve one configuration, each on its own sockets, which Envoy knows as endpoints.

The supervisor serves no requests. It starts the processes in fresh interpreters (a fork would copy threads' locks), and
starts again what ends by itself; its own end, also by SIGKILL, ends them. It answers metrics and health for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from extproc.config.resolve import resolve_workers
from extproc.config.schema import Config
from extproc.discovery.build import build_discovery
from extproc.discovery.discovery import Discovery
from extproc.discovery.roster import Roster
from extproc.observe.admin import Readiness
from extproc.observe.exposition import Family, families, render
from extproc.observe.workers import WorkerFigures, worker_figures
from extproc.supervisor.channel import Start
from extproc.supervisor.member import Member
from extproc.supervisor.process import StopSignals, admin_server
from extproc.supervisor.totals import Retired, add_up
from extproc.transport.serving import TransportName

_log = logging.getLogger(__name__)

_STATES = ("starting", "ready", "not_ready", "down")
_OVER_GRACE_S = 10.0
"""How much longer than its drain a process may take to end."""


class StartError(Exception):
    """A process cannot serve."""


class Supervisor:
    """The `Source` of an admin server for all processes together."""

    def __init__(self, config: Config, transport: TransportName, settle_s: float) -> None:
        """`config` must have its workers' addresses looked up: all processes work with the same."""
        as_json = config.model_dump_json()
        self._retired = Retired()
        self._stopping = False
        self._grace_s = settle_s + config.limits.drain_s + _OVER_GRACE_S
        self._members = [
            Member(Start(as_json, number, transport, settle_s), ended=self._retired.add)
            for number in range(config.processes)
        ]
        self._runs: list[asyncio.Task[None]] = []
        self.discovery: Discovery = build_discovery(config, self._publish, self._running)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    async def start(self) -> None:
        """Start all processes and wait until they serve. Raises StartError, OSError."""
        await self.discovery.start()
        self._runs = [asyncio.create_task(member.run()) for member in self._members]
        for member in self._members:
            problem = await member.first_start
            if problem is not None:
                raise StartError(f"process {member.number}: {problem}")

    async def until(self, stopped: asyncio.Task[object]) -> None:
        """Wait for `stopped`, with what goes wrong here besides."""
        done, _ = await asyncio.wait({stopped, *self._runs}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """End all processes in order; at once, when `hurry` is set or they take too long."""
        self._stopping = True
        await self.discovery.stop()
        for member in self._members:
            member.stop()
        if not self._runs:
            return
        for run, member in zip(self._runs, self._members, strict=True):
            if member.pid is None:
                run.cancel()  # it waits to start again
        passing_on = asyncio.create_task(self._pass_on(hurry)) if hurry is not None else None
        try:
            async with asyncio.timeout(self._grace_s):
                await asyncio.gather(*self._runs, return_exceptions=True)
        except TimeoutError:
            _log.warning("processes that have not ended after %g s are killed", self._grace_s)
        finally:
            if passing_on is not None:
                passing_on.cancel()
            for member in self._members:
                member.kill()
            await asyncio.gather(*self._runs, return_exceptions=True)

    async def _pass_on(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        for member in self._members:
            member.stop()

    def _publish(self, roster: Roster) -> None:
        for member in self._members:
            member.workers(roster)

    async def _sums(self) -> list[Family]:
        parts = await asyncio.gather(*(member.families() for member in self._members))
        return add_up([*parts, self._retired.families, families(self._registry)])

    async def metrics(self) -> bytes:
        """The sums over all processes, as Prometheus text."""
        return await render(await self._sums())

    async def worker_figures(self) -> Mapping[tuple[str, str], WorkerFigures]:
        """How workers are, by pool and label."""
        return worker_figures(await self._sums())

    async def _running(self) -> Mapping[tuple[str, str], int]:
        return {worker: figures.running_requests for worker, figures in (await self.worker_figures()).items()}

    async def readiness(self) -> Readiness:
        """Ready while one process is; the detail names each."""
        processes = [
            {
                "process": member.number,
                "pid": member.pid,
                "state": member.state,
                "restarts": member.restarts,
                **member.detail,
            }
            for member in self._members
        ]
        ready = not self._stopping and any(member.ready for member in self._members)
        return Readiness(ready, {"stopping": self._stopping, "processes": processes})

    def collect(self) -> Iterator[Metric]:
        """Its own metrics, for a prometheus-client registry."""
        counts = Counter(member.state for member in self._members)
        states = GaugeMetricFamily("extproc_processes", "Processes by their state.", labels=("state",))
        for state in _STATES:
            states.add_metric((state,), counts[state])
        yield states
        yield CounterMetricFamily(
            "extproc_process_restarts",
            "Processes that ended by themselves and were started again.",
            sum(member.restarts for member in self._members),
        )


async def serve_processes(config: Config, transport: TransportName, settle_s: float) -> None:
    """Serve with `config.processes` processes until a signal. Raises ResolveError, StartError, OSError."""
    signals = StopSignals()
    resolved = await asyncio.to_thread(resolve_workers, config)
    supervisor = Supervisor(resolved, transport, settle_s)
    async with admin_server(config, supervisor):
        stopped: asyncio.Task[object] = asyncio.create_task(signals.stop.wait())
        start = asyncio.create_task(supervisor.start())
        try:
            await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
                _log.info("serving with %d processes", config.processes)
                await supervisor.until(stopped)
        finally:
            start.cancel()
            stopped.cancel()
            await supervisor.stop(signals.hurry)
