"""What a pool asks its engines: whether they are well, over gRPC or HTTP, and what load they report."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import monotonic

import grpc.aio

from extproc.config.address import HostPort, parse_listen
from extproc.config.fleet import Health, HttpHealth, LoadMetrics
from extproc.config.schema import Pool
from extproc.engines.control import WorkerControl, open_channel
from extproc.engines.http_get import HttpAccess, HttpGetError, http_get
from extproc.engines.load_metrics import load_of, load_samples
from extproc.gateway.http_models import MODELS_PATH
from extproc.gateway.http_target import HttpTarget
from extproc.routing.engine_loops import EngineLoops
from extproc.routing.health import HealthChecks, Verdict
from extproc.routing.membership import Membership
from extproc.routing.worker import ReportedLoad, Worker

_log = logging.getLogger(__name__)

_HEALTH_BYTES = 64 << 10
_METRICS_BYTES = 16 << 20
_METRICS_TIMEOUT_S = 2.0


class GrpcChecks:
    """The engine protocol's own health call, each engine over one connection. An `Observer`, before the checks."""

    def __init__(self, engine: str, timeout_s: float) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._ranks: Counter[str] = Counter()  # at each address
        self._closing: set[asyncio.Task[None]] = set()

    async def check(self, address: str) -> Verdict:
        """A `Check`."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        healthy = await WorkerControl(address, channel, self._engine).check(self._timeout_s)
        return Verdict.GONE if healthy is None else Verdict.HEALTHY if healthy else Verdict.UNHEALTHY

    def joined(self, worker: Worker) -> None:
        """The connection is opened by the first check."""
        self._ranks[worker.address] += 1

    def restarted(self, worker: Worker) -> None:
        """grpcio connects again by itself."""

    def left(self, worker: Worker) -> None:
        """Close the connection, with the engine's last rank."""
        self._ranks[worker.address] -= 1
        if self._ranks[worker.address]:
            return
        del self._ranks[worker.address]
        channel = self._channels.pop(worker.address, None)
        if channel is not None:
            task = asyncio.ensure_future(channel.close(None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all connections."""
        channels = list(self._channels.values())
        self._channels = {}
        await asyncio.gather(*(channel.close(None) for channel in channels), *self._closing)


class HttpChecks:
    """A GET that is answered with 2xx."""

    def __init__(self, section: HttpHealth, timeout_s: float, target: HttpTarget | None = None) -> None:
        """`target`: what engines over HTTP want."""
        self._section = section
        self._timeout_s = timeout_s
        self._target = target

    async def check(self, address: str) -> Verdict:
        """A `Check`."""
        section, target = self._section, self._target
        where = _at(address, section.port)
        # Another port is another server, which gets no key.
        access = target.access() if target is not None and section.port is None else HttpAccess()
        try:
            status, _ = await http_get(
                where, section.path, timeout_s=self._timeout_s, limit_bytes=_HEALTH_BYTES, access=access
            )
        except HttpGetError as error:
            return Verdict.GONE if isinstance(error.__cause__, ConnectionRefusedError) else Verdict.UNHEALTHY
        return Verdict.HEALTHY if 200 <= status < 300 else Verdict.UNHEALTHY


class LoadReadings(EngineLoops):
    """Reads the load that engines report, an `Observer`: one loop per engine, whose ranks each get their own."""

    def __init__(self, section: LoadMetrics) -> None:
        super().__init__()
        self._section = section

    def restarted(self, worker: Worker) -> None:
        """What it said is void."""
        worker.reported = None

    async def watch(self, address: str, ranks: list[Worker]) -> None:
        """Read it for ever."""
        section = self._section
        where = _at(address, section.port)
        told = ""
        while True:
            asked_s = monotonic()
            problem = ""
            try:
                status, body = await http_get(
                    where, section.path, timeout_s=_METRICS_TIMEOUT_S, limit_bytes=_METRICS_BYTES
                )
                if status == 200:
                    samples = load_samples(body.decode(errors="replace"))
                    for worker in ranks:
                        load = load_of(samples, worker.rank)
                        worker.reported = ReportedLoad(
                            asked_s, load.waiting_requests, load.running_requests, load.kv_usage
                        )
                        if load.waiting_requests is not None:
                            worker.load.reported(asked_s, monotonic(), requests=load.waiting_requests)
                else:
                    problem = f"http://{where}{section.path} answered with status {status}"
            except HttpGetError as error:
                problem = str(error)
            if problem:
                for worker in ranks:
                    worker.reported = None
                if problem != told:
                    _log.warning("the load of worker %s is unknown: %s", ranks[0].label, problem)
            told = problem
            await self.pause(section.interval_s)


def _at(address: str, port: int | None) -> HostPort:
    worker = parse_listen(address)
    return worker if port is None else HostPort(worker.host, port)


class PoolChecks:
    """All of one pool, as its configuration wants it."""

    def __init__(self, section: Pool, health: Health, members: Membership, target: HttpTarget | None = None) -> None:
        """Begins to ask. `target`: of engines over HTTP, which are asked for their models unless told otherwise."""
        self._grpc: GrpcChecks | None = None
        if section.http_health is not None:
            check = HttpChecks(section.http_health, health.timeout_s, target).check
        elif target is not None:
            models = HttpHealth(path=target.path_prefix + MODELS_PATH)
            check = HttpChecks(models, health.timeout_s, target).check
        else:
            self._grpc = GrpcChecks(section.engine, health.timeout_s)
            check = self._grpc.check
        self._health = HealthChecks(
            members,
            check,
            interval_s=health.interval_s,
            healthy_after=health.healthy_after,
            unhealthy_after=health.unhealthy_after,
        )
        members.observe(self._health)
        if self._grpc is not None:
            members.observe(self._grpc)  # after the checks, which use its connections
        self._readings: LoadReadings | None = None
        if section.load_metrics is not None:
            self._readings = LoadReadings(section.load_metrics)
            members.observe(self._readings)

    async def stop(self) -> None:
        """End."""
        await self._health.stop()
        if self._readings is not None:
            await self._readings.stop()
        if self._grpc is not None:
            await self._grpc.aclose()
