from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from simulator_client import Client

from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import EngineSpec

Start = Callable[..., Awaitable[Client]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts an engine where nothing takes time unless the options say so, and gives a client of it."""
    async with AsyncExitStack() as stack:

        async def start_one(**options: Any) -> Client:
            spec = EngineSpec(**{"prefill_tokens_per_s": 0.0, "decode_step_s": 0.0, **options})
            (engine,) = await start_engines([spec])
            stack.push_async_callback(engine.stop)
            channel = grpc.aio.insecure_channel(engine.address)
            stack.push_async_callback(channel.close)
            return Client(engine, channel)

        yield start_one
