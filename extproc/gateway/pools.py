"""From a configuration to pools, backends and the table of models."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from extproc.config.schema import Config
from extproc.config.schema import Pool as PoolSection
from extproc.discovery.roster import Entry, Roster, static_roster
from extproc.engines.base import Engine
from extproc.engines.registry import engine
from extproc.gateway.backend import Backend
from extproc.gateway.http_target import ApiKey, HttpTarget
from extproc.gateway.policies import build_policy
from extproc.ir import ModelCard
from extproc.observe.instruments import Counter
from extproc.observe.metrics import Metrics
from extproc.routing.admission import Admission, Caps, Refusal
from extproc.routing.membership import Membership, Resilience, WorkerSpec
from extproc.routing.pool import ModelTable, ModelTarget, Pool
from extproc.routing.worker import Worker


class Fleet(Struct, frozen=True):
    """Everything that a configuration's pools lead to."""

    backends: Mapping[str, Backend]  # by the name of their pool
    table: ModelTable

    @property
    def workers(self) -> list[Worker]:
        """All workers of all pools."""
        return [worker for backend in self.backends.values() for worker in backend.pool.workers]


def build_fleet(config: Config, roster: Roster | None = None) -> Fleet:
    """`roster`: the workers of now; without it those of the configuration, which must have IP addresses.

    Raises PolicyError, and OSError where a file that belongs to a pool cannot be read.
    """
    roster = static_roster(config) if roster is None else roster
    health = config.health
    resilience = Resilience(health.breaker_failures, health.breaker_open_s, health.slow_start_s)
    created = int(time.time())
    backends: dict[str, Backend] = {}
    targets: dict[str, list[ModelTarget]] = {}
    cards: dict[str, ModelCard] = {}
    aliases: dict[str, set[str]] = {}
    for section in config.pools:
        for model in section.models:
            aliases.setdefault(model.name, set()).update(model.aliases)
    for section in config.pools:
        members = Membership((), resilience, _call_later)
        members.update(specs(roster[section.name]))
        pool = Pool(section.name, (), build_policy(section), config.envoy.retries, members)
        backends[pool.name] = Backend(
            pool,
            _engine(section, aliases),
            section.context_tokens,
            tool_parser=section.tool_parser,
            reasoning_parser=section.reasoning_parser,
        )
        for model in section.models:
            targets.setdefault(model.name, []).append(ModelTarget(pool, model.weight))
            cards.setdefault(model.name, ModelCard(model.name, created))
    for name, others in aliases.items():
        for alias in sorted(others):
            targets[alias] = targets[name]
            cards[alias] = ModelCard(alias, created)
    return Fleet(backends, ModelTable(targets, cards.values()))


def _engine(section: PoolSection, aliases: Mapping[str, set[str]]) -> Engine | HttpTarget:
    if section.engine != "openai":
        return engine(section.engine)
    names = {
        name: model.engine_name or model.name for model in section.models for name in (model.name, *aliases[model.name])
    }
    http = section.http
    tls = None
    if http.tls is not None:
        try:
            tls = ssl.create_default_context(cafile=http.tls.ca)
        except OSError as error:
            raise OSError(f"pool {section.name}: the authorities in {http.tls.ca} cannot be read: {error}") from error
    return HttpTarget(
        path_prefix=http.path_prefix,
        host=http.host,
        api_key=None if http.api_key is None else ApiKey(http.api_key),
        asks_usage=http.ask_usage,
        names=names,
        tls=tls,
        server_name=None if http.tls is None else http.tls.server_name,
    )


def specs(entries: Sequence[Entry]) -> list[WorkerSpec]:
    """A pool's part of a roster, for its membership."""
    return [WorkerSpec(each.address, each.label, each.ranks, each.draining, each.wait_s) for each in entries]


def limit(fleet: Fleet, config: Config, metrics: Metrics) -> None:
    """Set up admission where pools have caps: an equal part of them, since each process counts for itself."""
    for section in config.pools:
        overload = section.overload
        if not overload.capped:
            continue

        def part(whole: int | None) -> int | None:
            return None if whole is None else max(whole // config.processes, 1)

        name = section.name
        pool = fleet.backends[name].pool
        pool.admission = Admission(
            Caps(
                part(overload.worker_requests),
                part(overload.worker_tokens),
                part(overload.pool_requests),
                part(overload.pool_tokens),
                overload.queue_requests // config.processes,
                overload.queue_tokens // config.processes,
                overload.queue_s,
                overload.retry_after_s,
            ),
            pool.members,
            waited=metrics.queue_wait.child(name).observe,
            refused=_counting({each: metrics.admission_refused.child(name, each.value) for each in Refusal}),
        )


def _counting(counters: Mapping[Refusal, Counter]) -> Callable[[Refusal], None]:
    return lambda refusal: counters[refusal].inc()


def _call_later(delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, call)
