"""ext_proc conversations that no Envoy would have, by a client in its place: each ends clearly and leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from exchange.exchange_fakes import (
    kinds,
    parse,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from http2_peers import chunk, complete
from stack import INSTANT, START_S, eventually

from extproc.config.schema import Config
from extproc.gateway.processor import Processor
from extproc.routing.worker import WorkerState
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import OWN_MODEL, EngineSpec
from extproc.transport.serving import TransportName

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
PATIENCE_S = 20.0

BODY = json.dumps(
    {"model": "simulated", "messages": [{"role": "user", "content": "Hello!"}], "stream": True, "max_tokens": 8}
).encode()


def head(*, end: bool = False, **headers: str) -> bytes:
    """A chat request's headers."""
    return request_headers(end=end, **{":path": "/v1/chat/completions", **headers})


CONVERSATION = [
    head(),
    request_body(BODY[:20]),
    request_body(b""),
    request_body(BODY[20:]),
    request_body(b"", end=True),
    response_headers(content_type="application/grpc"),
    response_body(chunk([5, 6])),
    response_body(chunk([7])[:9]),
    response_body(chunk([7])[9:]),
    response_body(b""),
    response_body(complete([])),
    response_trailers(grpc_status="0"),
]
"""One whole exchange as Envoy has it."""


class Gateway:
    """A processor, and a client that plays Envoy."""

    def __init__(self, processor: Processor, channel: grpc.aio.Channel) -> None:
        self.processor = processor
        self.channel = channel
        self._open = channel.stream_stream(PROCESS)

    async def talk(self, messages: Sequence[bytes]) -> tuple[list[bytes], grpc.StatusCode, str]:
        """Send all, end, and read to the end: replies, status, details."""
        async with asyncio.timeout(PATIENCE_S):
            for attempt in itertools.count():
                replies, code, details = await self._try_to_talk(messages, attempt * 0.001)
                # A write at the moment of the server's end hides the server's status behind one of grpcio's own.
                if details != "Internal error from Core":
                    break
        return replies, code, details

    async def _try_to_talk(self, messages: Sequence[bytes], pause_s: float) -> tuple[list[bytes], grpc.StatusCode, str]:
        call = self._open()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                if call.done():
                    break
                await call.write(message)
                if pause_s:
                    await asyncio.sleep(pause_s)
            await call.done_writing()
        replies = []
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for reply in call:
                replies.append(reply)
        return replies, await call.code(), await call.details()

    async def reset(self, messages: Sequence[bytes]) -> None:
        """Send all, and reset the stream as soon as that is on its way."""
        call = self._open()
        for message in messages:
            await call.write(message)
        call.cancel()

    async def nothing_left(self) -> None:
        fleet = self.processor.fleet
        assert fleet is not None
        await eventually(
            lambda: (
                self.processor.open_exchanges == 0
                and self.processor.held_bytes == 0
                and all(worker.running == worker.waiting_tokens == 0 for worker in fleet.workers)
            ),
            "exchanges, bodies and reservations at rest",
        )

    async def still_serves(self) -> None:
        """Nothing that happened harmed those who come after."""
        replies, code, _ = await self.talk(CONVERSATION)
        assert code is grpc.StatusCode.OK
        assert kinds(replies)[0] == "request_headers"
        assert kinds(replies)[-1] == "response_trailers"
        text = b"".join(
            reply.response_body.response.body_mutation.streamed_response.body for reply in parse(replies)
        ).decode()
        assert text.endswith("data: [DONE]\n\n")
        await self.nothing_left()


@pytest_asyncio.fixture(params=["ngh2", "grpcio"], scope="module", loop_scope="module")
async def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One for all tests of a transport: what a test leaves harms the next, which every test looks for at its end."""
    transport: TransportName = request.param
    tmp_path: Path = tmp_path_factory.mktemp("gateway")
    (engine,) = await start_engines([EngineSpec(**INSTANT)])
    config = Config(
        listen={"processor": [f"unix:{tmp_path}/p.sock"], "metrics": None},
        envoy={"directory": str(tmp_path / "xds")},
        pools=[
            {"name": "main", "models": ["simulated"], "workers": [engine.address], "tokenizer": str(OWN_MODEL)},
        ],
        health={"interval_s": 0.1},
    )
    processor = Processor(config, transport)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/p.sock", options) as channel:
        try:
            await processor.start()
            await asyncio.wait_for(processor.ready.wait(), START_S)
            fleet = processor.fleet
            assert fleet is not None
            await eventually(lambda: fleet.workers[0].state is WorkerState.READY, "the worker ready", START_S)
            yield Gateway(processor, channel)
        finally:
            await processor.stop(settle_s=0.0, grace_s=0.0)
            await engine.stop()


async def test_a_conversation_in_order_is_served(gateway: Gateway) -> None:
    await gateway.still_serves()


@pytest.mark.parametrize("at", ["first", "middle"])
async def test_bytes_that_are_no_message_end_the_call_with_a_status(gateway: Gateway, at: str) -> None:
    noise = random.Random(7)
    spoilt = [b"\xff", b"\x0a\x7f", noise.randbytes(100), noise.randbytes(100_000), head()[:-1], CONVERSATION[5][:-3]]
    for garbage in spoilt:
        for before in ([],) if at == "first" else (CONVERSATION[:1], CONVERSATION[:2], CONVERSATION[:6]):
            _, code, details = await gateway.talk([*before, garbage])
            assert (code, details) == (grpc.StatusCode.INVALID_ARGUMENT, "not an ext_proc message")
    await gateway.still_serves()


async def test_what_comes_before_its_headers_ends_the_call_with_a_status(gateway: Gateway) -> None:
    for early in (request_body(BODY, end=True), request_trailers(), response_body(b"x"), response_trailers(), b""):
        _, code, details = await gateway.talk([early])
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "request_header_mode and response_header_mode SEND" in details
    _, code, _ = await gateway.talk([head(), request_body(BODY, end=True), response_body(b"x")])
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    await gateway.still_serves()


async def test_a_stream_that_begins_with_the_answer_passes_unchanged(gateway: Gateway) -> None:
    replies, code, _ = await gateway.talk([response_headers(), response_body(b"x" * 200_000), response_trailers()])
    assert code is grpc.StatusCode.OK
    assert kinds(replies) == ["response_headers", *["response_body"] * 4, "response_trailers"]
    passed = b"".join(r.response_body.response.body_mutation.streamed_response.body for r in parse(replies))
    assert passed == b"x" * 200_000
    await gateway.nothing_left()


async def test_messages_in_any_order_and_twice_end_and_leave_nothing(gateway: Gateway) -> None:
    order = random.Random(11)
    for _ in range(60):
        messages = [order.choice(CONVERSATION) for _ in range(order.randrange(1, 16))]
        replies, code, details = await gateway.talk(messages)
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.FAILED_PRECONDITION), details
        assert [kind for kind in kinds(replies) if kind is None] == []
    for end in (request_body(b"", end=True), request_trailers()):
        replies, code, _ = await gateway.talk([*CONVERSATION[:5], end, end, *CONVERSATION[5:]])
        assert code is grpc.StatusCode.OK
        assert kinds(replies).count("request_headers") == 1
        replies, code, _ = await gateway.talk([*CONVERSATION, CONVERSATION[-1], CONVERSATION[-2]])
        assert kinds(replies).count("response_trailers") == 1
    await gateway.still_serves()


async def test_a_half_close_at_any_point_ends_the_call_well(gateway: Gateway) -> None:
    for length in range(len(CONVERSATION) + 1):
        _, code, details = await gateway.talk(CONVERSATION[:length])
        assert code is grpc.StatusCode.OK, details
    await gateway.still_serves()


async def test_a_reset_at_any_point_leaves_nothing(gateway: Gateway) -> None:
    for length in range(len(CONVERSATION) + 1):
        await gateway.reset(CONVERSATION[:length])
    await gateway.nothing_left()
    await asyncio.gather(
        *(gateway.reset(CONVERSATION[:length]) for length in range(len(CONVERSATION) + 1) for _ in range(10))
    )
    await gateway.still_serves()


async def test_a_large_body_in_pieces_is_taken_or_refused_whole(gateway: Gateway) -> None:
    long = json.dumps({"model": "simulated", "messages": [{"role": "user", "content": "word " * 4_000_000}]}).encode()
    pieces = [request_body(long[at : at + (1 << 20)]) for at in range(0, len(long), 1 << 20)]
    replies, code, _ = await gateway.talk([head(), *pieces, request_body(b"", end=True)])
    assert code is grpc.StatusCode.OK
    (reply,) = parse(replies)
    assert reply.immediate_response.status.code == 400
    assert json.loads(reply.immediate_response.body)["error"]["code"] == "context_length_exceeded"
    # One that never ends is refused at the limit, and what is still on its way is not held.
    replies, code, _ = await gateway.talk([head(), *pieces, *pieces, *pieces])
    assert code is grpc.StatusCode.OK
    (reply,) = parse(replies)
    assert reply.immediate_response.status.code == 413
    await gateway.still_serves()


async def test_a_body_in_very_many_pieces_is_one_body(gateway: Gateway) -> None:
    pieces = [request_body(bytes([byte])) for byte in BODY]
    empty = [request_body(b"")] * 2000
    replies, code, _ = await gateway.talk([head(), *empty, *pieces, *empty, request_body(b"", end=True)])
    assert code is grpc.StatusCode.OK
    assert kinds(replies) == ["request_headers"]
    await gateway.nothing_left()


async def test_a_huge_header_map_is_read_or_refused(gateway: Gateway) -> None:
    many = {f"x-{number}": "v" * 90 for number in range(30_000)}
    replies, code, _ = await gateway.talk([head(**many), *CONVERSATION[1:5]])
    assert (code, kinds(replies)) == (grpc.StatusCode.OK, ["request_headers"])
    replies, code, _ = await gateway.talk([head(content_length="9" * 10_000, x_large="v" * 5_000_000)])
    assert (code, replies) == (grpc.StatusCode.OK, [])
    _, code, _ = await gateway.talk([head(x_large="v" * (17 << 20))])
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    replies, code, _ = await gateway.talk(
        [*CONVERSATION[:5], response_headers(content_type="application/grpc", **many), *CONVERSATION[6:]]
    )
    assert code is grpc.StatusCode.OK
    assert kinds(replies)[-1] == "response_trailers"
    await gateway.still_serves()


async def test_a_filter_in_another_mode_is_told_what_to_change(gateway: Gateway) -> None:
    buffered = head().replace(b"\x08\x04\x10\x04", b"\x08\x02\x10\x02")
    assert buffered != head()
    _, code, details = await gateway.talk([buffered, *CONVERSATION[1:]])
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "FULL_DUPLEX_STREAMED" in details
    await gateway.still_serves()


async def test_other_methods_are_not_implemented(gateway: Gateway) -> None:
    for path in ("/envoy.service.ext_proc.v3.ExternalProcessor/Other", "/grpc.health.v1.Health/List", "/a/b"):
        gateway_call = gateway.channel.unary_unary(path)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await gateway_call(b"")
        assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
