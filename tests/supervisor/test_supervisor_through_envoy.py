"""A process that is killed under load loses only its own streams, through a real Envoy."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from e2e.stack import eventually, running_envoy
from supervisor_command import Serving, kill, serving, write_config

from extproc.config.load import load
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import EngineSpec

pytestmark = pytest.mark.envoy

STREAMS = 40
TOKENS = 60
SHORT = {"model": "simulated", "messages": [{"role": "user", "content": "Hello!"}], "ignore_eos": True}
BODY = {**SHORT, "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}


async def one_stream(http: httpx2.AsyncClient, begun: asyncio.Queue[None]) -> str:
    """`complete`, or `broken` where the connection or the stream ended before the answer did."""
    told = False
    text = ""
    try:
        async with http.stream("POST", "/v1/chat/completions", json=BODY) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for piece in answer.aiter_text():
                text += piece
                if not told and "content" in text:
                    told = True
                    begun.put_nowait(None)
    except httpx2.TransportError:
        return "broken"
    return (
        "complete" if text.rstrip().endswith("data: [DONE]") and f'"completion_tokens":{TOKENS}' in text else "broken"
    )


async def complete(http: httpx2.AsyncClient) -> bool:
    """Whether a short request gets a whole answer."""
    answer = await http.post("/v1/chat/completions", json={**SHORT, "max_tokens": 1})
    return answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 1


async def test_a_killed_process_loses_only_its_own_streams_and_comes_back(envoy_binary: Path, tmp_path: Path) -> None:
    engines = await start_engines([EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.1) for _ in range(2)])
    workers = [engine.address for engine in engines]
    pool = {"name": "main", "models": ["simulated"], "workers": workers, "policy": "round_robin"}
    file, values = write_config(tmp_path, pools=[pool], health={"interval_s": 0.2})
    try:
        async with (
            serving(file, values) as running,
            running_envoy(envoy_binary, load(file), tmp_path),
            httpx2.AsyncClient(
                base_url=f"http://{values['listen']['http']}",
                timeout=60.0,
                limits=httpx2.Limits(max_connections=None),
            ) as http,
        ):
            await eventually(lambda: complete(http), "answers through Envoy", 20)
            await kill_one_of_two_under_load(http, running)
            # What was killed serves again: it alone, once the other is killed too.
            await eventually(running.all_ready, "the killed process ready again", 30)
            await eventually(lambda: complete(http), "answers through Envoy", 20)
            kill((await running.processes())[1]["pid"])
            await eventually(lambda: complete(http), "answers from the process that came back", 20)
    finally:
        for engine in engines:
            await engine.stop()


async def kill_one_of_two_under_load(http: httpx2.AsyncClient, running: Serving) -> None:
    done_before = await running.total("extproc_requests_total", operation="chat", status="2xx")
    begun: asyncio.Queue[None] = asyncio.Queue()
    streams = [asyncio.create_task(one_stream(http, begun)) for _ in range(STREAMS)]
    async with asyncio.timeout(30):
        for _ in range(STREAMS):
            await begun.get()
    assert await running.total("extproc_exchanges_in_flight") == STREAMS
    killed = (await running.processes())[0]["pid"]
    kill(killed)

    async def noticed() -> bool:
        return (await running.processes())[0]["pid"] != killed

    await eventually(noticed, "the supervisor noticed")
    others = await running.total("extproc_exchanges_in_flight")
    assert 0 < others < STREAMS
    ends = Counter(await asyncio.gather(*streams))
    assert ends == {"complete": others, "broken": STREAMS - others}
    done = await running.total("extproc_requests_total", operation="chat", status="2xx", error_type="")
    assert done == done_before + others
