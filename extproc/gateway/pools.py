"""From a configuration to pools, backends and the table of models."""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec import Struct

from extproc.config.schema import Config
from extproc.engines.registry import engine
from extproc.gateway.backend import Backend
from extproc.ir import ModelCard
from extproc.routing.policies import LeastLoad, Random, RoundRobin
from extproc.routing.pool import ModelTable, ModelTarget, Pool
from extproc.routing.worker import Worker


_POLICIES: dict[str, type[LeastLoad | RoundRobin | Random]] = {
    policy.name: policy for policy in (LeastLoad, RoundRobin, Random)
}
"""By the name that a configuration uses."""


class Fleet(Struct, frozen=True):
    """Everything that a configuration's pools lead to."""

    backends: Mapping[str, Backend]  # by the name of their pool
    table: ModelTable

    @property
    def workers(self) -> list[Worker]:
        """All workers of all pools."""
        return [worker for backend in self.backends.values() for worker in backend.pool.workers]


def build_fleet(config: Config) -> Fleet:
    """Workers must have IP addresses, as Envoy knows them."""
    created = int(time.time())
    backends: dict[str, Backend] = {}
    targets: dict[str, list[ModelTarget]] = {}
    cards: dict[str, ModelCard] = {}
    aliases: dict[str, set[str]] = {}
    for section in config.pools:
        workers = [Worker(worker.label, str(worker.address)) for worker in section.workers]
        pool = Pool(section.name, workers, _POLICIES[section.policy](), config.envoy.retries)
        backends[pool.name] = Backend(
            pool,
            engine(section.engine),
            section.context_tokens,
            tool_parser=section.tool_parser,
            reasoning_parser=section.reasoning_parser,
        )
        for model in section.models:
            targets.setdefault(model.name, []).append(ModelTarget(pool, model.weight))
            aliases.setdefault(model.name, set()).update(model.aliases)
            cards.setdefault(model.name, ModelCard(model.name, created))
    for name, others in aliases.items():
        for alias in sorted(others):
            targets[alias] = targets[name]
            cards[alias] = ModelCard(alias, created)
    return Fleet(backends, ModelTable(targets, cards.values()))
