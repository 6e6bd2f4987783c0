"""What metrics show of KV events. Read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from extproc.gateway.kv_feeds import KvFeeds
from extproc.routing.kv_events.figures import LOSSES


class KvGauges:
    """For a prometheus-client registry."""

    def __init__(self, feeds: Mapping[str, KvFeeds]) -> None:
        """By pool; may grow."""
        self._feeds = feeds

    def collect(self) -> Iterator[Metric]:
        """The present state."""
        subscriptions = GaugeMetricFamily(
            "extproc_kv_event_subscriptions",
            "Engines whose KV events come in (live), and those that do not offer them or cannot be reached (waiting).",
            labels=("pool", "state"),
        )
        blocks = CounterMetricFamily(
            "extproc_kv_event_blocks", "Blocks of KV caches that events told of.", labels=("pool", "event")
        )
        batches = CounterMetricFamily("extproc_kv_event_batches", "Batches of KV events.", labels=("pool",))
        dropped = CounterMetricFamily(
            "extproc_kv_event_dropped",
            "Blocks of KV events, or events whose blocks are not known, that could not be used.",
            labels=("pool", "reason"),
        )
        losses = CounterMetricFamily(
            "extproc_kv_event_losses",
            "How often all that a worker's events had said became void.",
            labels=("pool", "cause"),
        )
        lag = GaugeMetricFamily(
            "extproc_kv_event_lag_seconds",
            "Age of a worker's newest KV events when they came, by the clocks of both.",
            labels=("pool", "worker"),
        )
        for pool, feeds in self._feeds.items():
            figures = feeds.figures
            live = feeds.live
            subscriptions.add_metric((pool, "live"), live)
            subscriptions.add_metric((pool, "waiting"), feeds.engines - live)
            blocks.add_metric((pool, "stored"), figures.stored)
            blocks.add_metric((pool, "removed"), figures.removed)
            batches.add_metric((pool,), figures.batches)
            for reason, count in figures.dropped.items():
                dropped.add_metric((pool, reason), count)
            for cause in LOSSES:
                losses.add_metric((pool, cause), figures.losses[cause])
            for worker, lag_s in figures.lag_s.items():
                lag.add_metric((pool, worker), lag_s)
        yield from (subscriptions, blocks, batches, dropped, losses, lag)
