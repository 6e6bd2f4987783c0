"""A running processor: pools, health checks, servers, from a configuration to a graceful stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from extproc.config.resolve import resolve_workers
from extproc.config.schema import Config
from extproc.dialects.json_body import BodyLimits
from extproc.discovery.build import build_discovery
from extproc.discovery.discovery import Discovery
from extproc.discovery.roster import Roster
from extproc.exchange.service import ExtProcService
from extproc.gateway.backend import Backend
from extproc.gateway.gateway import Gateway
from extproc.gateway.gauges import Gauges
from extproc.gateway.pools import Fleet, build_fleet, limit, specs
from extproc.gateway.preparation import Preparation
from extproc.gateway.routing import Routing
from extproc.gateway.tenants import tenant_headers
from extproc.gateway.worker_checks import PoolChecks
from extproc.observe.admin import Readiness
from extproc.observe.exposition import Family, families, render
from extproc.observe.metrics import Metrics
from extproc.observe.turns import LoopTurns
from extproc.observe.workers import WorkerFigures, worker_figures
from extproc.tokens.cache import TokenCache
from extproc.transport.health import Health, ServingStatus
from extproc.transport.limits import TransportLimits
from extproc.transport.serving import Server, TransportName, serve
from extproc.transport.tls import TlsFiles

_log = logging.getLogger(__name__)

READINESS = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")
"""Health services that say whether requests can be taken; `liveness` says only that the process lives."""

LIVENESS = "liveness"

ALL_POOLS = "all-pools"
"""Health service that says whether every pool can take requests: for those who start everything together."""


class Processor:
    """One processor process. The `Source` of an admin server."""

    def __init__(
        self,
        config: Config,
        transport: TransportName = "ngh2",
        *,
        process: int = 0,
        ready_changed: Callable[[], None] = lambda: None,
        roster: Roster | None = None,
    ) -> None:
        """`process`: which of the configuration's. `ready_changed`: `readiness` may say something new.

        `roster`: the workers, where somebody else finds them and says with `apply` when they change.
        """
        self._config = config
        self._transport: TransportName = transport
        self._process = process
        self._ready_changed = ready_changed
        self._metrics: Metrics | None = None
        self._turns = LoopTurns()
        self._stopping = False
        self._health = Health()
        self._servers: list[Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._preparations: list[Preparation] = []
        self._checks: list[PoolChecks] = []
        self._roster = roster
        self.discovery: Discovery | None = None
        """Where this process finds its workers itself."""
        self._routing: Routing | None = None
        self._exchanges: ExtProcService | None = None
        self._gateway: Gateway | None = None
        self._not_ready = {section.name for section in config.pools}
        self.fleet: Fleet | None = None
        self.token_cache: TokenCache | None = None
        """Tokens of earlier prompts, with its counters."""
        self.ready = asyncio.Event()
        """Set once every pool can take requests."""

    @property
    def addresses(self) -> list[str]:
        """Where it serves, `unix:/path` or `host:port`, with real ports."""
        return [server.address for server in self._servers]

    @property
    def open_exchanges(self) -> int:
        """Requests under way."""
        return self._exchanges.open_calls if self._exchanges is not None else 0

    @property
    def held_bytes(self) -> int:
        """Of request bodies that have not come whole yet."""
        return self._exchanges.held_bytes if self._exchanges is not None else 0

    def families(self) -> Iterator[Family]:
        """All metrics as plain data, collected one by one while this is iterated."""
        return families(self._metrics.registry) if self._metrics is not None else iter(())

    async def metrics(self) -> bytes:
        """All metrics as Prometheus text."""
        return await render(self.families())

    async def readiness(self) -> Readiness:
        """Whether some pool can take requests, as the health service says."""
        return self.ready_now()

    def ready_now(self) -> Readiness:
        """The same at once."""
        pools = {section.name: section.name not in self._not_ready for section in self._config.pools}
        ready = self._exchanges is not None and any(pools.values()) and not self._stopping
        return Readiness(ready, {"stopping": self._stopping, "pools": pools})

    async def start(self) -> None:
        """Serve. Pools become ready afterwards, beside the traffic. Raises ResolveError, ListenError, OSError."""
        config = await asyncio.to_thread(resolve_workers, self._config)
        self._config = config
        if self._roster is None and self._process == 0:
            self.discovery = build_discovery(config, self.apply, self._running)
            await self.discovery.start()
        fleet = build_fleet(config, self._roster)
        self.fleet = fleet
        limits = config.limits
        metrics = Metrics([card.id for card in fleet.table.cards], fleet.backends)
        self._metrics = metrics
        body_limits = BodyLimits(max_depth=limits.json_depth, max_messages=limits.messages)
        gateway = Gateway(
            table=fleet.table,
            backends=fleet.backends,
            metrics=metrics,
            body_limit_bytes=limits.body_bytes,
            body_limits=body_limits,
            debug_clients=config.debug.clients,
            tenants=tenant_headers(config.tenants),
            calls_timeout_s=limits.deadline_s,
        )
        limit(fleet, config, metrics)
        self._routing = Routing(fleet, config, metrics)
        self._gateway = gateway
        exchanges = ExtProcService(
            gateway,
            deadline_s=limits.deadline_s,
            held_bodies_bytes=limits.held_bytes,
            keep_alive_s=limits.keep_alive_s,
        )
        self._exchanges = exchanges
        for name in (*READINESS, ALL_POOLS):
            self._health.set(name, ServingStatus.NOT_SERVING)
        self._health.set(LIVENESS, ServingStatus.SERVING)
        token_cache = TokenCache(limits.token_cache_bytes) if limits.token_cache_bytes else None
        self.token_cache = token_cache
        self._prepare(fleet, Path(config.envoy.directory).parent / "tokenizers", token_cache)
        # Nobody waits for the event loop yet.
        await asyncio.gather(*(preparation.load_early() for preparation in self._preparations))
        service = {**exchanges.service(), **self._health.service()}
        transport_limits = TransportLimits(max_concurrent_streams=config.envoy.max_streams)
        encryption = config.listen.processor_tls
        tls = TlsFiles(encryption.certificate, encryption.key, encryption.client_ca) if encryption else None
        for address in config.sockets_of(self._process):
            self._servers.append(await serve(service, str(address), self._transport, transport_limits, tls))
        metrics.registry.register(Gauges(fleet, exchanges, self._servers, self._turns, token_cache))
        self._turns.start()
        self._checks = [
            PoolChecks(section, config.health, backend.pool.members, backend.http)
            for section in config.pools
            if (backend := fleet.backends[section.name])
        ]
        self._tasks.extend(asyncio.create_task(preparation.run()) for preparation in self._preparations)
        _log.info("serving on %s", ", ".join(self.addresses))

    def apply(self, roster: Roster) -> None:
        """The workers of all pools, from now on."""
        self._roster = roster
        if self.fleet is not None:
            for name, entries in roster.items():
                self.fleet.backends[name].pool.members.update(specs(entries))

    async def worker_figures(self) -> Mapping[tuple[str, str], WorkerFigures]:
        """How workers are, by pool and label."""
        return worker_figures(self.families())

    async def _running(self) -> Mapping[tuple[str, str], int]:
        fleet = self.fleet
        backends = fleet.backends.items() if fleet is not None else ()
        return {(name, worker.label): worker.running for name, backend in backends for worker in backend.pool.workers}

    def _prepare(self, fleet: Fleet, folder: Path, token_cache: TokenCache | None) -> None:
        def serves() -> bool:
            return any(backend.tokens is not None for backend in fleet.backends.values())

        self._preparations = [
            Preparation(section, fleet.backends[section.name], folder, self._pool_ready, token_cache, serves)
            for section in self._config.pools
        ]

    def _pool_ready(self, backend: Backend) -> None:
        """With one pool there is something to serve; requests for the others get a 503 until they are ready."""
        self._not_ready.discard(backend.pool.name)
        if self._routing is not None:
            self._routing.follow_kv_events(backend.pool.name)
        assert self._gateway is not None
        self._gateway.refresh_models()
        for name in READINESS:
            self._health.set(name, ServingStatus.SERVING)
        if not self._not_ready:
            self._health.set(ALL_POOLS, ServingStatus.SERVING)
            self.ready.set()
        self._ready_changed()

    async def stop(self, *, settle_s: float, grace_s: float) -> None:
        """Not healthy any more, `settle_s` for Envoy to notice, then no new streams, then the running ones end."""
        self._stopping = True
        self._ready_changed()
        self._health.shut_down(but=(LIVENESS,))
        if settle_s:
            await asyncio.sleep(settle_s)
        self._health.end_watches()
        await asyncio.gather(*(server.stop(grace_s) for server in self._servers))
        self._turns.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(preparation.aclose() for preparation in self._preparations))
        if self.discovery is not None:
            await self.discovery.stop()
        await asyncio.gather(*(checks.stop() for checks in self._checks))
        if self._routing is not None:
            await self._routing.stop()
        if self._exchanges is not None:
            self._exchanges.close()
        if self._gateway is not None:
            await self._gateway.calls.aclose()
        if self.fleet is not None:
            for backend in self.fleet.backends.values():
                if backend.pool.admission is not None:
                    backend.pool.admission.close()
                backend.pool.members.close()
                if backend.tokens is not None:
                    await backend.tokens.aclose()
