"""The document of the metrics names every one, with its kind and labels, and none besides."""

from __future__ import annotations

import re
from pathlib import Path

from gateway_in_process import build_gateway, load_tokens
from prometheus_client import CollectorRegistry

from extproc.config.fleet import KvEvents
from extproc.config.schema import Config
from extproc.exchange.service import ExtProcService
from extproc.gateway.gauges import Gauges
from extproc.gateway.kv_feeds import KvFeeds
from extproc.gateway.kv_gauges import KvGauges
from extproc.observe.exposition import families
from extproc.observe.metrics import RequestAccount
from extproc.observe.turns import LoopTurns
from extproc.routing.index import PrefixIndex
from extproc.routing.policies.base import PrefixUse
from extproc.routing.prefixes import Prefixes
from extproc.supervisor.supervisor import Supervisor
from extproc.tokens.cache import TokenCache
from extproc.transport.server import Ngh2Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (.*?) \|")


async def test_every_metric_is_described() -> None:
    described = {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(DOCUMENT.read_text())
    }
    tokens = await load_tokens()
    gateway, metrics, fleet = build_gateway(tokens)
    account = RequestAccount(metrics)
    account.exceeds_deadline()
    account.loses(["user"])
    account.closes()
    metrics.series("m", "chat")
    metrics.queue_wait.child("main")
    metrics.decisions.child("main", "ttft", "cached")
    metrics.estimate_error.child("main", "later")
    metrics.admission_refused.child("main", "queue_full")
    exchanges = ExtProcService(gateway, deadline_s=1.0, held_bodies_bytes=1)
    metrics.registry.register(Gauges(fleet, exchanges, [Ngh2Server({})], LoopTurns(), TokenCache(1)))
    feeds = KvFeeds(KvEvents(), Prefixes(PrefixIndex(), 16, PrefixUse(), 1))
    feeds.figures.dropped["full"] = 1
    feeds.figures.lag_s["w"] = 0.1
    metrics.registry.register(KvGauges({"main": feeds}))
    supervisors = CollectorRegistry()
    supervisors.register(
        Supervisor(Config.model_validate({"pools": [{"name": "p", "models": ["m"], "workers": []}]}), "ngh2", 0)
    )
    shown = {
        family.name: (
            family.kind,
            frozenset(name for sample in family.samples for name, _ in sample.labels) - {"le"},
        )
        for registry in (metrics.registry, supervisors)
        for family in families(registry)
        if not family.name.startswith("process_")
    }
    assert described == shown
    await tokens.aclose()
