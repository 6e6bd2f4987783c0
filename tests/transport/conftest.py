"""Every test of this folder runs on uvloop, which serves in production, and on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import grpc.aio
import pytest
import uvloop
from grpc_proxy import running_proxy
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


@pytest.fixture(scope="session")
def proxy(envoy_binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Envoy that passes calls on to their authority."""
    with running_proxy(envoy_binaries["1.40"], tmp_path_factory.mktemp("proxy")) as address:
        yield address


@pytest.fixture
def via() -> str | None:
    """An address to connect to in place of the server's; a module parametrises it where it tests both ways."""
    return None


@pytest.fixture
async def connect(via: str | None) -> AsyncIterator[Connect]:
    """A grpcio channel of its own connection, without limits on what it receives."""
    channels: list[grpc.aio.Channel] = []

    def _connect(server: Server, *options: tuple[str, int]) -> grpc.aio.Channel:
        authority = [("grpc.default_authority", server.address)] if via else []
        channel = grpc.aio.insecure_channel(
            via or server.address,
            options=[
                *authority,
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
