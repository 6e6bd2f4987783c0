"""Gives pools what their policies need: the prefix index, engines' reports of load, and who counts decisions."""

from __future__ import annotations

import asyncio

from extproc.config.schema import Config
from extproc.config.schema import Pool as PoolSection
from extproc.gateway.kv_feeds import KvFeeds
from extproc.gateway.kv_gauges import KvGauges
from extproc.gateway.load_polls import LoadPolls
from extproc.gateway.pools import Fleet
from extproc.observe.metrics import Metrics
from extproc.routing.blocks import block_tokens_for
from extproc.routing.index import Sweeper
from extproc.routing.pool import Pool
from extproc.routing.prefixes import Prefixes

_STREAMS = frozenset({"vllm"})
"""Engine protocols with a stream of KV events."""

_KV_TOKENS = 500_000
"""Of a worker whose KV cache nobody knows: one data-centre GPU with a model of 8B holds about as much."""


class Routing:
    """All that runs beside the pools of one processor for their policies."""

    def __init__(self, fleet: Fleet, config: Config, metrics: Metrics) -> None:
        """Begins, on the event loop that is running."""
        self._sweeper = Sweeper(asyncio.get_running_loop())
        self._polls: list[LoadPolls] = []
        self._fleet = fleet
        self._sections = {section.name: section for section in config.pools}
        self.kv_feeds: dict[str, KvFeeds] = {}
        """Of pools whose workers publish KV events, by name."""
        metrics.registry.register(KvGauges(self.kv_feeds))
        for section in config.pools:
            pool = fleet.backends[section.name].pool
            self._open_prefixes(pool, section)
            _count(pool, metrics)
            if section.load_interval_s and section.engine != "openai":
                polls = LoadPolls(pool, section.engine, section.load_interval_s)
                pool.members.observe(polls)
                self._polls.append(polls)

    def _open_prefixes(self, pool: Pool, section: PoolSection) -> None:
        use = pool.policy.prefixes
        if use is not None:
            kv_tokens = section.kv_cache_tokens
            pool.prefixes = Prefixes(
                self._sweeper.index(),
                block_tokens_for(section.block_tokens),
                use,
                kv_tokens or _KV_TOKENS,
                kv_tokens_fixed=kv_tokens is not None,
            )
            pool.members.observe(pool.prefixes)

    def follow_kv_events(self, name: str) -> None:
        """The pool is ready: the size of its workers' blocks is known. Listen to their events from now on."""
        section = self._sections[name]
        pool = self._fleet.backends[name].pool
        source = section.kv_events.source
        offered = source == "zmq" or (source == "auto" and section.engine in _STREAMS)
        if pool.prefixes is not None and offered and name not in self.kv_feeds:
            feeds = self.kv_feeds[name] = KvFeeds(section.kv_events, pool.prefixes)
            pool.members.observe(feeds)

    async def stop(self) -> None:
        """End all of it."""
        await asyncio.gather(*(polls.stop() for polls in self._polls))
        await asyncio.gather(*(feeds.stop() for feeds in self.kv_feeds.values()))
        self._sweeper.close()


def _count(pool: Pool, metrics: Metrics) -> None:
    policy = pool.policy
    counters = {rule: metrics.decisions.child(pool.name, policy.name, rule) for rule in policy.reasons}
    later = metrics.estimate_error.child(pool.name, "later")
    earlier = metrics.estimate_error.child(pool.name, "earlier")

    def decided(rule: str) -> None:
        counters[rule].value += 1

    def estimate_seen(expected_s: float, seen_s: float) -> None:
        error_s = seen_s - expected_s
        if error_s < 0.0:
            earlier.observe(-error_s)
        else:
            later.observe(error_s)

    pool.decided = decided
    pool.estimate_seen = estimate_seen
