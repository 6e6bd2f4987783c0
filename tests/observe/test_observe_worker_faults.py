"""Whose fault an answer was decides whether its worker's breaker counts it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from gateway_in_process import load_tokens
from test_observe_exchanges import (
    END,
    EXPIRE,
    FAIL,
    HEAD,
    LAST,
    STREAM,
    TOKENS,
    UPSTREAM,
    Counted,
    response_body,
    response_headers,
    response_trailers,
    sends,
)

from extproc.config.fleet import HttpHealth, LoadMetrics
from extproc.exchange.exchange import Exchange
from extproc.gateway.worker_checks import HttpChecks, LoadReadings
from extproc.routing.breaker import BreakerState
from extproc.routing.health import Verdict
from extproc.routing.membership import Membership, WorkerSpec
from extproc.tokens.model import ModelTokens

GARBAGE = sends(response_body(b"\x00\x00\x00\x00\x03abc"))


@pytest.fixture
async def tokens() -> AsyncIterator[ModelTokens]:
    loaded = await load_tokens()
    yield loaded
    await loaded.aclose()


def local(status: int, details: str) -> Callable[[Exchange], None]:
    return sends(response_headers(status=status, end=True, details=details))


def grpc(status: str) -> Callable[[Exchange], None]:
    return sends(response_trailers(grpc_status=status, grpc_message="no"))


@pytest.mark.parametrize(
    ("acts", "fault"),
    [
        ([UPSTREAM, TOKENS, LAST, END], False),
        ([UPSTREAM, GARBAGE], True),
        ([UPSTREAM, grpc("13")], True),
        ([UPSTREAM, grpc("14")], True),
        ([UPSTREAM, grpc("8")], False),  # full
        ([UPSTREAM, grpc("3")], False),
        ([UPSTREAM, TOKENS, grpc("15")], True),
        ([UPSTREAM, TOKENS, END], True),  # a stream that broke off
        ([UPSTREAM, EXPIRE], True),  # not a word until the deadline
        ([UPSTREAM, TOKENS, EXPIRE], False),
        ([UPSTREAM, FAIL], False),  # our own
        ([UPSTREAM, TOKENS], False),  # the client left
        ([local(503, "upstream_reset_before_response_started{connection_failure}")], True),
        ([local(503, "upstream_reset_before_response_started{overflow}")], False),
        ([local(504, "upstream_response_timeout")], True),
        ([local(503, "no_healthy_upstream")], False),
        ([local(429, "rate_limited")], False),
        ([local(403, "rbac_access_denied_matched_policy[none]")], False),
    ],
)
async def test_failures_that_are_the_workers_own_open_its_breaker(
    tokens: ModelTokens, acts: list[Callable[[Exchange], None]], fault: bool
) -> None:
    counted = Counted(tokens)
    for worker in counted.fleet.workers[:1]:
        worker.draining = True  # the fake's answers come from the other
    (worker,) = counted.fleet.backends["main"].pool.members.candidates
    for _ in range(5):
        counted.of(HEAD, STREAM, *acts)
    breaker = worker.breaker
    assert breaker is not None
    assert breaker.state is (BreakerState.OPEN if fault else BreakerState.CLOSED)
    breaker.close()


async def test_half_open_one_exchange_goes_and_its_end_decides(tokens: ModelTokens) -> None:
    counted = Counted(tokens)
    counted.fleet.workers[0].draining = True
    pool = counted.fleet.backends["main"].pool
    (worker,) = pool.members.candidates
    breaker = worker.breaker
    assert breaker is not None
    for end, after in (
        ([UPSTREAM, grpc("13")], BreakerState.OPEN),
        ([UPSTREAM], BreakerState.HALF_OPEN),  # the client left: nobody knows
        ([UPSTREAM, TOKENS], BreakerState.CLOSED),  # it works, whatever the client does
    ):
        if breaker.state is BreakerState.CLOSED:
            for _ in range(5):
                counted.of(HEAD, STREAM, UPSTREAM, grpc("13"))
        if breaker.state is BreakerState.OPEN:
            assert breaker._timer is not None
            breaker._timer.cancel()
            breaker._half_open()
        exchange = counted.exchange(HEAD, STREAM)
        assert breaker.state is BreakerState.TRIAL
        refused = counted.requests().get(("5xx", "unavailable"), 0)
        counted.of(HEAD, STREAM)
        assert counted.requests()["5xx", "unavailable"] == refused + 1, "there is no other worker"
        for act in end:
            act(exchange)
        exchange.close()
        assert breaker.state is after
    breaker.close()


class Engine:
    """An engine's HTTP side."""

    def __init__(self) -> None:
        self.status = 200
        self.text = ""
        self.asked: list[str] = []
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        writer.write(f"HTTP/1.1 {self.status} x\r\n\r\n{self.text}".encode())
        writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    running = Engine()
    await running.start()
    yield running
    await running.stop()


async def test_health_over_http_tells_well_from_unwell_from_gone(engine: Engine) -> None:
    check = HttpChecks(HttpHealth(path="/healthy?deep=1"), 2.0).check
    assert await check(engine.address) is Verdict.HEALTHY
    assert engine.asked == ["/healthy?deep=1"]
    engine.status = 503
    assert await check(engine.address) is Verdict.UNHEALTHY
    port = int(engine.address.rpartition(":")[2])
    assert await HttpChecks(HttpHealth(port=port), 2.0).check("127.0.0.1:1") is Verdict.UNHEALTHY
    await engine.stop()
    assert await check(engine.address) is Verdict.GONE


async def test_loads_are_read_for_each_rank_and_unknown_when_nobody_says(engine: Engine, tmp_path: Path) -> None:
    engine.text = 'vllm:num_requests_waiting{engine="0"} 1\nvllm:num_requests_waiting{engine="1"} 2\n'
    members = Membership()
    readings = LoadReadings(LoadMetrics(interval_s=0.05))
    members.observe(readings)
    members.update([WorkerSpec(engine.address, "w", ranks=2)])

    async def until(waiting: list[int | None]) -> None:
        async with asyncio.timeout(5):
            while [w.reported.waiting_requests if w.reported else None for w in members.workers] != waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    await until([1, 2])
    assert all(worker.reported is not None and worker.reported.kv_usage is None for worker in members.workers)
    engine.status = 500
    await until([None, None])
    members.update([])
    await readings.stop()
