"""The processor itself dies and comes back, as a process of its own behind a real Envoy."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from free_ports import free_port
from processor_process import serve
from stack import START_S, eventually, running_envoy

from extproc.config.schema import Config
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import Answers, EngineSpec

pytestmark = pytest.mark.envoy

SLOW: dict[str, Any] = {
    "prefill_tokens_per_s": 0.0,
    "decode_step_s": 0.02,
    "answers": Answers.NATURAL,
    "answer_tokens": 1000,
}
BODY = {"model": "simulated", "messages": [{"role": "user", "content": "Tell me a story."}]}


async def test_a_killed_processor_breaks_its_streams_and_is_back_when_restarted(
    envoy_binary: Path, tmp_path: Path
) -> None:
    engines = await start_engines([EngineSpec(**SLOW)])
    (engine,) = engines
    values = {
        "listen": {
            "http": f"127.0.0.1:{free_port()}",
            "admin": f"127.0.0.1:{free_port()}",
            "metrics": f"127.0.0.1:{free_port()}",
            "processor": [f"unix:{tmp_path}/p.sock"],
        },
        "envoy": {"directory": str(tmp_path / "xds")},
        "pools": [{"name": "main", "models": ["simulated"], "workers": [engine.address]}],
        "health": {"interval_s": 0.1},
    }
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(values))
    config = Config.model_validate(values)
    url = f"http://{config.listen.http}/v1/chat/completions"
    async with (
        httpx2.AsyncClient(timeout=30.0) as http,
        running_envoy(envoy_binary, config, tmp_path),
    ):

        async def served() -> bool:
            return (await http.post(url, json={**BODY, "max_tokens": 1})).status_code == 200

        async with serve(file) as processor:
            await eventually(served, "an answer through the processor", START_S)
            with pytest.raises(httpx2.RemoteProtocolError):
                await broken_stream(http, url, processor)
            # Its engine is free again, and what comes now is told so in the clients' own form.
            await eventually(lambda: engine.load().running == 0, "the engine freed")
            answer = await http.post(url, json=BODY)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "processor_unavailable"
            assert int(answer.headers["retry-after"]) >= 1
        async with serve(file) as processor:
            await eventually(served, "an answer through the restarted processor", START_S)
            processor.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(processor.wait(), START_S) == 0
    for running in engines:
        await running.stop()


async def broken_stream(http: httpx2.AsyncClient, url: str, processor: asyncio.subprocess.Process) -> None:
    """Read an answer until the processor, killed in the middle of it, breaks it off."""
    pieces = 0
    async with http.stream("POST", url, json={**BODY, "stream": True}) as response:
        assert response.status_code == 200
        async for piece in response.aiter_text():
            assert "[DONE]" not in piece
            pieces += 1
            if pieces == 3:
                os.kill(processor.pid, signal.SIGKILL)
