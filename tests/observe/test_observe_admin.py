"""The operators' address: metrics, health and nothing else, whatever comes in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx2
import pytest

from extproc.observe.admin import AdminServer, Readiness


class Canned:
    """A source whose answers a test sets."""

    def __init__(self) -> None:
        self.ready = True
        self.held = asyncio.Event()
        self.held.set()
        self.asked = asyncio.Event()

    async def metrics(self) -> bytes:
        self.asked.set()
        await self.held.wait()
        return b"a 1.0\n"

    async def readiness(self) -> Readiness:
        return Readiness(self.ready, {"pools": {"main": self.ready}})


@pytest.fixture
def source() -> Canned:
    return Canned()


@pytest.fixture
async def port(source: Canned) -> AsyncIterator[int]:
    server = AdminServer(source)
    await server.start("127.0.0.1", 0)
    yield server.port
    await server.stop()


async def raw(port: int, data: bytes) -> bytes:
    """What is answered to these bytes, to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    return answer


async def test_metrics_and_health(port: int, source: Canned) -> None:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        metrics = await http.get("/metrics?debug=1")
        assert (metrics.status_code, metrics.text) == (200, "a 1.0\n")
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json() == {"ready": True, "detail": {"pools": {"main": True}}}
        source.ready = False
        not_ready = await http.get("/readyz")
        assert (not_ready.status_code, not_ready.json()["ready"]) == (503, False)
        assert (await http.get("/healthz")).status_code == 200
        head = await http.head("/metrics")
        assert (head.headers["content-length"], head.content) == ("6", b"")
        assert (await http.get("/")).status_code == 404
        assert (await http.post("/metrics")).status_code == 405


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"\xff\xfe\x00 /\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nx: " + 20_000 * b"y" + b"\r\n\r\n", b"431"),
    ],
)
async def test_what_is_no_request_is_refused(port: int, sent: bytes, status: bytes) -> None:
    assert (await raw(port, sent)).startswith(b"HTTP/1.1 " + status)


async def test_a_connection_that_says_nothing_holds_up_nobody(port: int) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    assert (await raw(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"alive\n")
    for _, writer in silent:
        writer.close()


async def test_too_many_connections_are_cut(port: int, source: Canned) -> None:
    source.held.clear()
    waiting = [asyncio.create_task(raw(port, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(40)]
    cut, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    source.held.set()
    await asyncio.wait(waiting)
    answered = [task for task in waiting if not task.exception() and task.result().endswith(b"a 1.0\n")]
    assert cut
    assert len(answered) == 32


async def test_a_stop_cuts_what_is_open(source: Canned) -> None:
    server = AdminServer(source)
    await server.start("127.0.0.1", 0)
    source.held.clear()
    waiting = asyncio.create_task(raw(server.port, b"GET /metrics HTTP/1.1\r\n\r\n"))
    async with asyncio.timeout(5):
        await source.asked.wait()
    async with asyncio.timeout(5):
        await server.stop()
        await asyncio.wait([waiting])
