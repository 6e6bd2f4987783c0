"""Frames without end: the client that sends them loses its connection, the others notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from raw_client import RawClient
from transport_probe import ECHO, HOLD, PATIENCE_S, Connect, Probe, Start

from extproc.transport.framing import frame


def http2_frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


PING = http2_frame(6, bytes(8))
SETTINGS = http2_frame(4, b"\x00\x04\x00\x00\xff\xff")
EMPTY_DATA = http2_frame(0, stream=1)
PRIORITY = http2_frame(2, b"\x00\x00\x00\x00\x10", stream=1)
UNKNOWN = http2_frame(200, b"what", stream=1)
CONTINUATION = http2_frame(1, b"", stream=3) + http2_frame(9, b"", stream=3) * 50

FLOODS = {
    "ping": PING,
    "settings": SETTINGS,
    "empty data": EMPTY_DATA,
    "priority": PRIORITY,
    "unknown": UNKNOWN,
    "continuation": CONTINUATION,
}


async def pour(client: RawClient, data: bytes, most_bytes: int) -> None:
    """Send until the server has had enough."""
    chunk = data * (65_536 // len(data))
    with contextlib.suppress(ConnectionError):
        for _ in range(most_bytes // len(chunk)):
            client.writer.write(chunk)
            await client.writer.drain()


@pytest.mark.parametrize("data", FLOODS.values(), ids=FLOODS.keys())
@pytest.mark.parametrize("reads", [True, False], ids=["reading", "not-reading"])
async def test_a_flood_of_frames_ends_its_connection_and_no_other(
    start: Start, connect: Connect, probe: Probe, data: bytes, reads: bool
) -> None:
    server = await start()
    channel = connect(server)
    other = channel.stream_stream(ECHO)()
    await other.write(b"before")
    assert await other.read() == b"before"
    async with RawClient(server) as client:
        client.request(HOLD, frame(b"one"))
        await client.flush()
        await probe.until(lambda: len(probe.calls) == 2)
        reader = asyncio.create_task(swallow(client)) if reads else None
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(OSError):
                await pour(client, data, 8 << 20)
            await probe.until(lambda: probe.calls[1].closes == 1)
            if reader is not None:
                await reader
    await other.write(b"after")
    assert await other.read() == b"after"


async def swallow(client: RawClient) -> None:
    with contextlib.suppress(ConnectionError):
        while await client.reader.read(1 << 16):
            pass


@pytest.mark.parametrize("wait", [False, True], ids=["at-once", "answered"])
async def test_clients_may_ping_and_reset_as_much_as_they_use(start: Start, probe: Probe, wait: bool) -> None:
    """What Envoy does at its busiest: a reset for every call, pings between them, all answers read."""
    async with RawClient(await start()) as client:
        acknowledged: Callable[[], int] = lambda: sum(  # noqa: E731
            type(event).__name__ == "PingAcknowledged" for event in client.events
        )
        for n in range(1, 2001):
            stream_id = client.request(ECHO, frame(b"one"))
            if wait:
                await client.until(lambda: stream_id in client.data)  # noqa: B023
            client.http.reset_stream(stream_id, 2)
            if n % 20 == 0:
                client.http.ping()
                await client.flush()
                await client.until(lambda: acknowledged() == n // 20)  # noqa: B023
        assert client.goaways == 0
    await probe.until_all_closed(len(probe.calls))
