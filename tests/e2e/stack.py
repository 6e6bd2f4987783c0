"""The whole stack for one test: a real Envoy, the processor, and simulated engines, all on free ports.

Processor and engines run in the test's own event loop, so that a test can look into them; clients are asynchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
from free_ports import free_port

from extproc.config.schema import Config
from extproc.envoyconfig.files import BOOTSTRAP, build, write
from extproc.gateway.processor import Processor
from extproc.routing.worker import WorkerState
from extproc.simulator.fleet import RunningEngine, start_engines
from extproc.simulator.spec import EngineSpec
from extproc.transport.serving import TransportName

START_S = 30.0

INSTANT: dict[str, Any] = {"prefill_tokens_per_s": 0.0, "decode_step_s": 0.0}
"""An engine that answers at once."""


async def eventually(condition: Callable[[], bool | Awaitable[bool]], what: str, within_s: float = 10.0) -> None:
    """Wait for a condition that nothing announces."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        assert loop.time() < end, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.02)


@dataclass
class Stack:
    """A running gateway."""

    folder: Path
    config: Config
    envoy: asyncio.subprocess.Process
    processor: Processor
    engines: list[RunningEngine]
    http_port: int
    admin_port: int
    http: httpx2.AsyncClient
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}/v1"

    def client(self, **options: Any) -> openai.AsyncOpenAI:
        """The official SDK, validating every body and event strictly."""
        settings = {"max_retries": 0, "timeout": 60.0, **options}
        client = openai.AsyncOpenAI(base_url=self.base_url, api_key="key", _strict_response_validation=True, **settings)
        self.clients.append(client)
        return client

    def running(self) -> int:
        """Requests that engines work on."""
        return sum(engine.load().running + engine.load().waiting for engine in self.engines)

    def load(self) -> tuple[int, int]:
        """Tokens and requests that the processor has put on workers."""
        assert self.processor.fleet is not None
        workers = self.processor.fleet.workers
        return sum(w.waiting_tokens for w in workers), sum(w.running for w in workers)

    async def nothing_left(self, within_s: float = 5.0) -> None:
        """No engine works, no exchange is open, no load is reserved, no body is held."""
        await eventually(
            lambda: (
                (self.running(), self.processor.open_exchanges, self.processor.held_bytes, self.load())
                == (0, 0, 0, (0, 0))
            ),
            "engines, exchanges, bodies and reservations at rest",
            within_s,
        )

    async def stats(self, prefix: str) -> dict[str, int]:
        """Envoy's counters."""
        text = (await self.http.get(f"http://127.0.0.1:{self.admin_port}/stats?usedonly&filter={prefix}")).text
        pairs = (line.rsplit(": ", 1) for line in text.splitlines() if ": " in line)
        return {name: int(value) for name, value in pairs if value.isdecimal()}

    def envoy_log(self) -> str:
        return (self.folder / "envoy.log").read_text()


@contextlib.asynccontextmanager
async def running_envoy(binary: Path, config: Config, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Envoy with a configuration of ours; ready when this is entered, gone when it is left."""
    directory = Path(config.envoy.directory)
    write(build(config), directory)
    log = (folder / "envoy.log").open("ab")
    process = await asyncio.create_subprocess_exec(
        str(binary),
        "--config-path",
        str(directory / BOOTSTRAP),
        "--disable-hot-restart",
        "--concurrency",
        "1",
        "--log-level",
        "warning",
        stdout=log,
        stderr=log,
    )
    try:
        async with httpx2.AsyncClient() as http:

            async def ready() -> bool:
                assert process.returncode is None, (folder / "envoy.log").read_text()[-3000:]
                with contextlib.suppress(httpx2.TransportError):
                    return (await http.get(f"http://{config.listen.admin}/ready")).status_code == 200
                return False

            await eventually(ready, "Envoy ready", START_S)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        log.close()


StartStack = Callable[..., contextlib.AbstractAsyncContextManager[Stack]]


@contextlib.asynccontextmanager
async def running_stack(
    binary: Path,
    folder: Path,
    *,
    specs: list[EngineSpec] | None = None,
    settings: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    pools: Callable[[list[str]], list[dict[str, Any]]] | None = None,
    transport: TransportName = "ngh2",
) -> AsyncIterator[Stack]:
    """Two engines that answer at once, or those of `specs`. `settings` and `pool`: parts of the configuration.

    `pools` makes others than the one pool, of the engines' addresses in the order of `specs`.
    """
    engines = await start_engines(specs if specs is not None else [EngineSpec(**INSTANT) for _ in range(2)])
    http_port, admin_port = free_port(), free_port()
    values: dict[str, Any] = {
        "listen": {
            "http": f"127.0.0.1:{http_port}",
            "admin": f"127.0.0.1:{admin_port}",
            "processor": [f"unix:{folder}/p.sock"],
        },
        "pools": [
            {
                "name": "main",
                "models": ["simulated"],
                "workers": [engine.address for engine in engines],
                "policy": "round_robin",
                **(pool or {}),
            }
        ],
        "debug": {"clients": ["127.0.0.0/8"]},
        "health": {"interval_s": 0.1, "timeout_s": 2.0},
    }
    if pools is not None:
        values["pools"] = pools([engine.address for engine in engines])
    for key, value in (settings or {}).items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    values["envoy"] = {"directory": str(folder / "xds"), **values.get("envoy", {})}
    config = Config.model_validate(values)
    processor = Processor(config, transport)
    try:
        await processor.start()
        await asyncio.wait_for(processor.ready.wait(), START_S)
        fleet = processor.fleet
        assert fleet is not None
        await eventually(
            lambda: all(worker.state is WorkerState.READY for worker in fleet.workers), "all workers ready", START_S
        )
        async with (
            running_envoy(binary, config, folder) as envoy,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{http_port}", timeout=60.0) as http,
        ):
            stack = Stack(folder, config, envoy, processor, engines, http_port, admin_port, http)

            async def through() -> bool:
                return (await http.get("/v1/models")).status_code == 200

            await eventually(through, "the processor healthy in Envoy's eyes", START_S)
            try:
                yield stack
            finally:
                for client in stack.clients:
                    await client.close()
    finally:
        await processor.stop(settle_s=0.0, grace_s=0.0)
        for engine in engines:
            await engine.stop()
