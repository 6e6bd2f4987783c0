"""What metrics show as it is now: workers, exchanges, connections, the token cache. Read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from extproc.exchange.service import ExtProcService
from extproc.gateway.pools import Fleet
from extproc.observe.turns import LoopTurns
from extproc.routing.worker import Worker
from extproc.tokens.cache import TokenCache
from extproc.transport.serving import Server

_OF_WORKERS: tuple[tuple[str, str, Callable[[Worker], float]], ...] = (
    ("extproc_worker_ready", "1 for a worker that may be chosen, else 0.", lambda w: w.selectable),
    ("extproc_worker_waiting_tokens", "Prompt tokens dispatched and not yet answered.", lambda w: w.waiting_tokens),
    ("extproc_worker_running_requests", "Requests dispatched and not yet ended.", lambda w: w.running),
    (
        "extproc_worker_backlog_tokens",
        "Prompt tokens that a worker has yet to compute, as estimated: without what its cache holds.",
        lambda w: w.load.backlog_tokens(monotonic()),
    ),
    (
        "extproc_worker_prefill_tokens_per_second",
        "How fast a worker computes prompts, as measured by its first tokens; the pool's median until then.",
        lambda w: w.load.pace.tokens_per_s,
    ),
    (
        "extproc_worker_breaker_open",
        "1 for a worker that gets no requests, or one to try, because it failed those before.",
        lambda w: w.on_trial,
    ),
)


class Gauges:
    """For a prometheus-client registry."""

    def __init__(
        self,
        fleet: Fleet,
        exchanges: ExtProcService,
        servers: Sequence[Server],
        turns: LoopTurns,
        token_cache: TokenCache | None = None,
    ) -> None:
        """`servers` may grow."""
        self._fleet = fleet
        self._exchanges = exchanges
        self._servers = servers
        self._turns = turns
        self._token_cache = token_cache

    def collect(self) -> Iterator[Metric]:
        """The present state."""
        exchanges = self._exchanges
        servers = self._servers
        for name, documentation, value in (
            ("extproc_exchanges_in_flight", "Requests under way.", exchanges.open_calls),
            ("extproc_held_body_bytes", "Bodies of requests that have not come whole yet.", exchanges.held_bytes),
            (
                "extproc_transport_streams",
                "Open gRPC calls of Envoy's, health checks included.",
                sum(server.open_calls for server in servers),
            ),
            (
                "extproc_event_loop_longest_turn_seconds",
                "Longest turn of the event loop in the last one to two minutes.",
                self._turns.longest_s,
            ),
        ):
            yield GaugeMetricFamily(name, documentation, value)
        connections = [server.connections for server in servers]
        if None not in connections:
            total = sum(each or 0 for each in connections)
            yield GaugeMetricFamily("extproc_transport_connections", "Open connections of Envoy's.", total)
        yield from self._workers()
        yield self._tokenizers()
        if self._token_cache is not None:
            yield from _of_cache(self._token_cache)

    def _workers(self) -> Iterator[Metric]:
        for name, documentation, value_of in _OF_WORKERS:
            family = GaugeMetricFamily(name, documentation, labels=("pool", "worker"))
            for pool, backend in self._fleet.backends.items():
                for worker in backend.pool.workers:
                    family.add_metric((pool, worker.label), value_of(worker))
            yield family
        states = GaugeMetricFamily(
            "extproc_worker_state", "1 for the state that a worker is in.", labels=("pool", "worker", "state")
        )
        opened = CounterMetricFamily(
            "extproc_worker_breaker_opened",
            "How often a worker's circuit breaker opened.",
            labels=("pool", "worker"),
        )
        for pool, backend in self._fleet.backends.items():
            for worker in backend.pool.workers:
                states.add_metric((pool, worker.label, worker.state.value), 1)
                if worker.breaker is not None:
                    opened.add_metric((pool, worker.label), worker.breaker.opened)
        yield states
        yield opened
        yield from self._queues()

    def _queues(self) -> Iterator[Metric]:
        requests = GaugeMetricFamily(
            "extproc_queue_requests", "Requests that wait for room on a pool with caps.", labels=("pool",)
        )
        tokens = GaugeMetricFamily("extproc_queue_tokens", "Their prompt tokens.", labels=("pool",))
        for pool, backend in self._fleet.backends.items():
            admission = backend.pool.admission
            requests.add_metric((pool,), admission.waiting_requests if admission is not None else 0)
            tokens.add_metric((pool,), admission.waiting_tokens if admission is not None else 0)
        yield requests
        yield tokens

    def _tokenizers(self) -> Metric:
        family = GaugeMetricFamily(
            "extproc_tokenizer_info",
            "The library that encodes a pool's prompts; absent until it is loaded.",
            labels=("pool", "library"),
        )
        for name, backend in self._fleet.backends.items():
            if backend.tokens is not None:
                family.add_metric((name, backend.tokens.serves_with), 1)
        return family


def _of_cache(cache: TokenCache) -> Iterator[Metric]:
    lookups = CounterMetricFamily(
        "extproc_token_cache_lookups", "Prompts by what the token cache knew of them.", labels=("found",)
    )
    nothing = cache.lookups - cache.hits - cache.partial_hits
    for found, count in (
        ("whole", cache.hits),
        ("beginning", cache.partial_hits),
        ("nothing", nothing),
        ("not_asked", cache.skipped),
    ):
        lookups.add_metric((found,), count)
    yield lookups
    characters = CounterMetricFamily(
        "extproc_token_cache_characters", "Characters of prompts that were looked up.", labels=("source",)
    )
    characters.add_metric(("cache",), cache.reused_characters)
    characters.add_metric(("tokenizer",), cache.encoded_characters)
    yield characters
    yield CounterMetricFamily("extproc_token_cache_evictions", "Parts of prompts that gave way.", cache.evictions)
    yield GaugeMetricFamily("extproc_token_cache_entries", "Parts of prompts in the token cache.", len(cache))
    yield GaugeMetricFamily("extproc_token_cache_bytes", "Memory that the token cache uses.", cache.used_bytes)
