"""A processor listens to its workers' KV events as its configuration says, from when a pool is ready until it stops."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from e2e.stack import eventually

from extproc.config.schema import Config
from extproc.gateway.processor import Processor
from extproc.observe.exposition import Family
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import EngineSpec


def subscriptions(families: Iterable[Family]) -> dict[str, float]:
    """How many there are by state, by the metrics."""
    return {
        dict(sample.labels)["state"]: sample.value
        for family in families
        if family.name == "extproc_kv_event_subscriptions"
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ({}, {"live": 1, "waiting": 0}),
        ({"kv_events": "off"}, {}),
        ({"policy": "least_load"}, {}),
        ({"kv_events": {"source": "zmq"}}, {"live": 1, "waiting": 0}),
    ],
)
async def test_a_processor_listens_as_it_is_told(
    tmp_path: Path, pool: dict[str, Any], expected: dict[str, float]
) -> None:
    zmq = isinstance(pool.get("kv_events"), dict)
    (engine,) = await start_engines([EngineSpec(kv_zmq="tcp://127.0.0.1:*" if zmq else "")])
    if zmq:
        port = int(engine.engine.kv_publisher.endpoint.rpartition(":")[2])
        pool = {"kv_events": {"source": "zmq", "port": port}}
    processor = Processor(
        Config.model_validate(
            {
                "listen": {"processor": [f"unix:{tmp_path}/p.sock"], "metrics": None},
                "envoy": {"directory": str(tmp_path / "envoy" / "xds")},
                "pools": [{"name": "main", "models": ["simulated"], "workers": [engine.address], **pool}],
            }
        )
    )
    try:
        await processor.start()
        await processor.ready.wait()
        await eventually(lambda: subscriptions(processor.families()) == expected, f"{expected} subscriptions")
    finally:
        await processor.stop(settle_s=0, grace_s=0)
        assert engine.engine.kv_events is not None
        streams = engine.engine.kv_events._streams
        await eventually(lambda: not streams, "no stream is left")
        await engine.stop()
