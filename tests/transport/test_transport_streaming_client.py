"""One server-streaming call, against grpcio's server and against peers that are none."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from extproc.transport.status import Status
from extproc.transport.streaming_client import open_call

LIMIT = 100_000
PATH = "/test.Service/Stream"


class Heard:
    """A receiver that remembers."""

    def __init__(self):
        self.got = []
        self.is_open = asyncio.Event()
        self.end = asyncio.get_running_loop().create_future()

    def opened(self):
        self.is_open.set()

    def messages(self, messages):
        self.got += messages

    def ended(self, status, details):
        self.end.set_result((status, details))


async def ask(port, request=b"question"):
    heard = Heard()
    call = await open_call("127.0.0.1", port, PATH, request, heard, max_message_bytes=LIMIT, timeout_s=5)
    return call, heard


async def serving(answer):
    """A grpcio server with one method."""

    class Methods(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_stream_rpc_method_handler(answer) if details.method == PATH else None

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Methods()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def ended(heard):
    async with asyncio.timeout(10):
        return await heard.end


async def test_messages_of_any_size_come_whole_and_in_order():
    sizes = [0, 1, 5, 16_384, 70_000, 3] * 5

    async def answer(request, context):
        assert request == b"question"
        for size in sizes:
            yield bytes([size % 251]) * size

    server, port = await serving(answer)
    _, heard = await ask(port)
    assert await ended(heard) == (Status.OK, "")
    assert heard.got == [bytes([size % 251]) * size for size in sizes]
    await server.stop(0)


async def test_a_status_in_trailers_is_told_after_what_came_before():
    async def answer(request, context):
        yield b"one"
        await context.abort(grpc.StatusCode.DATA_LOSS, "verlören %")

    server, port = await serving(answer)
    _, heard = await ask(port)
    assert await ended(heard) == (Status.DATA_LOSS, "verlören %")
    assert heard.got == [b"one"]
    await server.stop(0)


async def test_an_unknown_method_is_a_status_without_messages():
    async def answer(request, context):
        yield b""

    server, port = await serving(answer)
    heard = Heard()
    await open_call("127.0.0.1", port, "/no/method", b"", heard, max_message_bytes=1, timeout_s=5)
    status, _ = await ended(heard)
    assert status == Status.UNIMPLEMENTED
    assert not heard.is_open.is_set()
    await server.stop(0)


async def test_a_message_over_the_limit_ends_the_call():
    async def answer(request, context):
        yield b"small"
        yield bytes(LIMIT + 1)

    server, port = await serving(answer)
    _, heard = await ask(port)
    status, _ = await ended(heard)
    assert status == Status.RESOURCE_EXHAUSTED
    assert heard.got == [b"small"]
    await server.stop(0)


async def test_what_is_held_back_comes_later():
    async def answer(request, context):
        for number in range(2000):
            yield bytes([number % 256]) * 1000

    server, port = await serving(answer)
    call, heard = await ask(port)
    call.hold()
    async with asyncio.timeout(10):
        await asyncio.sleep(0.05)
        before = len(heard.got)
        await asyncio.sleep(0.05)
        assert len(heard.got) == before
    call.go_on()
    assert await ended(heard) == (Status.OK, "")
    assert len(heard.got) == 2000
    await server.stop(0)


async def test_a_cancelled_call_is_gone_at_the_server():
    gone = asyncio.Event()

    async def answer(request, context):
        try:
            yield b"one"
            await asyncio.sleep(60)
        finally:
            gone.set()

    server, port = await serving(answer)
    call, heard = await ask(port)
    async with asyncio.timeout(10):
        await heard.is_open.wait()
        call.cancel()
        await gone.wait()
    assert not heard.end.done()
    await server.stop(0)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100])
async def test_a_peer_that_is_no_grpc_server_ends_the_call(said):
    async def serve(reader, writer):
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        _, heard = await ask(server.sockets[0].getsockname()[1])
        status, _ = await ended(heard)
        assert status == Status.UNAVAILABLE


async def test_nobody_there_is_an_error_at_once():
    async with await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    with pytest.raises(OSError, match=r".*"):
        await ask(port)
