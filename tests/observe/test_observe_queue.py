"""A pool with caps: requests wait, get in, are refused in their dialect, or leave with their client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_in_process import WORKERS, chat_body, load_tokens
from test_observe_exchanges import END, LAST, UPSTREAM

from extproc.config.schema import Config
from extproc.exchange.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from extproc.exchange.service import ExtProcCall, ExtProcService
from extproc.gateway.gateway import Gateway
from extproc.gateway.pools import build_fleet, limit
from extproc.gateway.tenants import tenant_headers
from extproc.observe.metrics import Metrics
from extproc.routing.worker import WorkerState
from extproc.tokens.model import ModelTokens


class FakeCall:
    """Envoy's end of a call."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[ProcessingResponse] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        self.sent.put_nowait(ProcessingResponse.FromString(data))

    def finish(self, status: int = 0, message: str = "") -> None:
        pass


class Gate:
    """A gateway whose workers take one request each."""

    def __init__(self, tokens: ModelTokens, **overload: Any) -> None:
        config = Config.model_validate(
            {
                "pools": [
                    {
                        "name": "main",
                        "models": ["m"],
                        "workers": list(WORKERS),
                        "overload": {"worker_requests": 1, **overload},
                    }
                ],
                "tenants": {"header": "x-tenant", "priority_header": "x-priority"},
            }
        )
        self.fleet = build_fleet(config)
        for worker in self.fleet.workers:
            worker.state = WorkerState.READY
        self.fleet.backends["main"].tokens = tokens
        self.metrics = Metrics(["m"], self.fleet.backends)
        limit(self.fleet, config, self.metrics)
        gateway = Gateway(
            table=self.fleet.table,
            backends=self.fleet.backends,
            metrics=self.metrics,
            body_limit_bytes=4096,
            debug_clients=(),
            tenants=tenant_headers(config.tenants),
        )
        self.service = ExtProcService(gateway, deadline_s=60.0, held_bodies_bytes=1 << 20)
        admission = self.fleet.backends["main"].pool.admission
        assert admission is not None
        self.admission = admission

    def asks(self, priority: str = "") -> tuple[ExtProcCall, FakeCall]:
        """A request whose body has come whole."""
        call = FakeCall()
        handler = self.service._open(call)  # type: ignore[arg-type]
        assert isinstance(handler, ExtProcCall)
        head = ProcessingRequest()
        headers = {":method": "POST", ":path": "/v1/chat/completions", "x-tenant": "t", "x-priority": priority}
        for name, value in headers.items():
            head.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        handler.message(head.SerializeToString())
        body = ProcessingRequest()
        body.request_body.body = chat_body(stream=False)
        body.request_body.end_of_stream = True
        handler.message(body.SerializeToString())
        return handler, call

    def count(self, name: str) -> float:
        samples = [s for metric in self.metrics.registry.collect() for s in metric.samples]
        return sum(s.value for s in samples if s.name == name)

    def load(self) -> list[int]:
        return [worker.running for worker in self.fleet.workers]


@pytest.fixture
async def tokens() -> AsyncIterator[ModelTokens]:
    loaded = await load_tokens()
    yield loaded
    await loaded.aclose()


async def answered(call: FakeCall) -> ProcessingResponse:
    return await asyncio.wait_for(call.sent.get(), 5)


async def until_waiting(gate: Gate, count: int) -> None:
    async with asyncio.timeout(5):
        while gate.admission.waiting_requests != count:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)


async def test_a_request_waits_for_room_and_then_goes_on_as_if_nothing_had_been(tokens: ModelTokens) -> None:
    gate = Gate(tokens)
    first, second = gate.asks(), gate.asks()
    for _, call in (first, second):
        assert (await answered(call)).HasField("request_headers")
    waiting, call = gate.asks()
    await until_waiting(gate, 1)
    assert call.sent.empty()
    first[0].closed()
    assert (await answered(call)).HasField("request_headers")
    assert gate.count("extproc_queue_wait_seconds_count") == 1
    for handler in (second[0], waiting):
        handler.closed()
    assert gate.load() == [0, 0]
    gate.service.close()


async def test_a_client_that_leaves_the_queue_leaves_nothing(tokens: ModelTokens) -> None:
    gate = Gate(tokens, queue_requests=1)
    held = [gate.asks()[0] for _ in range(2)]
    leaving, _ = gate.asks()
    await until_waiting(gate, 1)
    leaving.closed()
    await until_waiting(gate, 0)
    staying, call = gate.asks()
    await until_waiting(gate, 1)
    held[0].closed()
    assert (await answered(call)).HasField("request_headers")
    assert sorted(gate.load()) == [1, 1]
    for handler in (held[1], staying):
        handler.closed()
    assert gate.load() == [0, 0]
    assert gate.count("extproc_cancelled_total") == 4
    gate.service.close()


async def test_one_that_leaves_before_its_wait_has_begun_leaves_nothing_either(tokens: ModelTokens) -> None:
    gate = Gate(tokens)
    held = [gate.asks()[0] for _ in range(2)]
    leaving, _ = gate.asks()
    leaving.closed()
    await asyncio.sleep(0)
    assert gate.admission.waiting_requests == 0
    for handler in held:
        handler.closed()
    await asyncio.sleep(0)
    assert gate.load() == [0, 0]
    gate.service.close()


async def test_beyond_the_queue_there_is_a_429_in_the_clients_dialect(tokens: ModelTokens) -> None:
    gate = Gate(tokens, queue_requests=1, retry_after_s=3)
    handlers = [gate.asks()[0] for _ in range(3)]
    await until_waiting(gate, 1)
    refused, call = gate.asks()
    reply = (await answered(call)).immediate_response
    assert reply.status.code == 429
    headers = {each.header.key: each.header.raw_value for each in reply.headers.set_headers}
    assert headers["retry-after"] == b"3"
    error = json.loads(reply.body)["error"]
    assert error["code"] == "queue_full"
    assert gate.count("extproc_admission_refused_total") == 1
    urgent, _ = gate.asks(priority="7")
    await until_waiting(gate, 1)
    for handler in (*handlers, refused, urgent):
        handler.closed()
    await until_waiting(gate, 0)
    assert gate.load() == [0, 0]
    gate.service.close()


async def test_an_answer_that_begins_makes_room_where_tokens_are_capped(tokens: ModelTokens) -> None:
    gate = Gate(tokens, worker_requests=None, worker_tokens=1)
    first, second = gate.asks(), gate.asks()
    waiting, call = gate.asks()
    await until_waiting(gate, 1)
    UPSTREAM(first[0].exchange)
    LAST(first[0].exchange)
    assert (await answered(call)).HasField("request_headers")
    END(first[0].exchange)
    for handler in (first[0], second[0], waiting):
        handler.closed()
    assert gate.load() == [0, 0]
    gate.service.close()
