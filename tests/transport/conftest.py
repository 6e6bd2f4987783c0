"""Every test of this folder runs on uvloop, which serves in production, and on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import grpc.aio
import pytest
import uvloop
from transport_probe import Connect, Probe, Start

from extproc.transport.limits import TransportLimits
from extproc.transport.service import Service
from extproc.transport.serving import Server, TransportName, serve


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def transport() -> TransportName:
    """The transport under test; a module parametrises it where it tests both."""
    return "ngh2"


@pytest.fixture
async def start(transport: TransportName, probe: Probe) -> AsyncIterator[Start]:
    """Start a server that serves the probe, on a free port unless told otherwise."""
    servers: list[Server] = []

    async def _start(
        service: Service | None = None, listen: str = "127.0.0.1:0", limits: TransportLimits | None = None
    ) -> Server:
        server = await serve(service if service is not None else probe.service(), listen, transport, limits)
        servers.append(server)
        return server

    yield _start
    for server in servers:
        await server.stop(0)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """A grpcio channel of its own connection, without limits on what it receives."""
    channels: list[grpc.aio.Channel] = []

    def _connect(server: Server, *options: tuple[str, int]) -> grpc.aio.Channel:
        channel = grpc.aio.insecure_channel(
            server.address,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
                *options,
            ],
        )
        channels.append(channel)
        return channel

    yield _connect
    for channel in channels:
        await channel.close()
