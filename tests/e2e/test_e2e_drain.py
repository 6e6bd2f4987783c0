"""One of two processors drains under load, and Envoy's clients notice nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from free_ports import free_port
from load_peers import CHAT, LoadClient, chat
from stack import START_S, eventually, running_envoy

from extproc.config.schema import Config
from extproc.gateway.processor import Processor
from extproc.routing.worker import WorkerState
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

PATIENCE_S = 60.0
SETTLE_S = 2.0
"""Two of Envoy's health checks."""

SPEC: dict[str, Any] = {"prefill_tokens_per_s": 0.0, "decode_step_s": 0.02, "answers": Answers.NATURAL}


async def started(config: Config, process: int) -> Processor:
    processor = Processor(config, process=process)
    await processor.start()
    await asyncio.wait_for(processor.ready.wait(), START_S)
    fleet = processor.fleet
    assert fleet is not None
    await eventually(lambda: fleet.workers[0].state is WorkerState.READY, "the worker ready", START_S)
    return processor


async def test_no_request_fails_while_a_processor_drains_and_another_serves(envoy_binary: Path, tmp_path: Path) -> None:
    (engine,) = await start_engines([EngineSpec(**SPEC, answer_tokens=10)])
    config = Config(
        listen={
            "http": f"127.0.0.1:{free_port()}",
            "admin": f"127.0.0.1:{free_port()}",
            "metrics": None,
            "processor": [f"unix:{tmp_path}/p.sock"],
        },
        processes=2,
        envoy={"directory": str(tmp_path / "xds")},
        pools=[{"name": "main", "models": ["simulated"], "workers": [engine.address], "tokenizer": str(OWN_MODEL)}],
        health={"interval_s": 0.2, "timeout_s": 30.0},
    )
    first, second = [await started(config, process) for process in range(2)]
    try:
        async with running_envoy(envoy_binary, config, tmp_path), httpx2.AsyncClient() as http:

            async def both() -> bool:
                stats = await http.get(f"http://{config.listen.admin}/stats?filter=processor.membership_healthy")
                return stats.text.strip().endswith(": 2")

            await eventually(both, "both processors healthy in Envoy's eyes", START_S)
            client = await LoadClient.connect(config.listen.http.port)
            ends: Counter[str] = Counter()
            over = asyncio.Event()

            async def load(number: int) -> None:
                while not over.is_set():
                    stream = client.post(chat(stream=bool(number % 2)), path=CHAT)
                    await asyncio.wait_for(stream.over.wait(), PATIENCE_S)
                    ends["whole" if stream.status == 200 and stream.ended else f"{stream.status} {stream.ended}"] += 1

            loads = [asyncio.create_task(load(number)) for number in range(40)]
            await eventually(lambda: bool(first.open_exchanges and second.open_exchanges), "both at work")
            await first.stop(settle_s=SETTLE_S, grace_s=PATIENCE_S)
            assert first.open_exchanges == 0
            drained = ends["whole"]
            await eventually(lambda: ends["whole"] >= drained + 40, "requests served by the other alone", PATIENCE_S)
            # A successor takes its place on the same socket, and the other may go.
            first = await started(config, 0)
            await eventually(both, "both processors healthy again", START_S)
            await second.stop(settle_s=SETTLE_S, grace_s=PATIENCE_S)
            over.set()
            await asyncio.gather(*loads)
            assert set(ends) == {"whole"}
            client.close()
    finally:
        for processor in (first, second):
            await processor.stop(settle_s=0.0, grace_s=0.0)
        await engine.stop()
