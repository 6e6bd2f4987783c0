"""Connections to ZeroMQ sockets, against the library itself and against peers that are no such thing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st

from extproc.transport.zmtp import _GREETING, Messages, ZmtpError, _frames, open_zmtp

LIMIT = 1 << 16


class Heard:
    """A receiver that remembers."""

    def __init__(self):
        self.messages = asyncio.Queue()
        self.is_connected = asyncio.Event()
        self.reason = asyncio.get_running_loop().create_future()

    def connected(self):
        self.is_connected.set()

    def message(self, frames):
        self.messages.put_nowait(frames)

    def disconnected(self, reason):
        self.reason.set_result(reason)


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=5), max_size=8), st.lists(st.integers(1, 40)))
def test_messages_may_come_in_any_pieces(messages, cuts):
    data = b"".join(_frames(message) for message in messages)
    reader = Messages(LIMIT)
    found = []
    for cut in [*cuts, len(data)]:
        found += reader.feed(data[:cut])
        data = data[cut:]
    assert found == messages


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail_in_any_other_way(data):
    with contextlib.suppress(ZmtpError):
        for frames in Messages(100).feed(data):
            assert sum(map(len, frames)) <= 100


@pytest.mark.parametrize(
    "data",
    [
        b"\x02" + (LIMIT + 1).to_bytes(8, "big"),
        b"\x02" + b"\xff" * 8,
        b"\x01\x01x" * 40,
        b"\x01\xff" * 1000,
        b"\x80\x01",
    ],
)
def test_too_much_is_known_before_it_comes(data):
    with pytest.raises(ZmtpError):
        Messages(LIMIT).feed(data)


async def connected(port, kind, first):
    heard = Heard()
    connection = await open_zmtp("127.0.0.1", port, kind, first, heard, max_message_bytes=LIMIT, timeout_s=5)
    return connection, heard


async def test_a_publisher_of_the_library_is_heard():
    context = zmq.asyncio.Context()
    try:
        publisher = context.socket(zmq.XPUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        connection, heard = await connected(port, "SUB", [b"\x01kv"])
        async with asyncio.timeout(10):
            assert await publisher.recv() == b"\x01kv"  # the subscription
            await publisher.send_multipart([b"other", b"", b""])
            for size in (0, 255, 256, 60_000):
                await publisher.send_multipart([b"kv", bytes(8), b"x" * size])
                assert await heard.messages.get() == [b"kv", bytes(8), b"x" * size]
            await publisher.send_multipart([b"kv", b"x" * LIMIT])
            assert "over the limits" in await heard.reason
        connection.close()
    finally:
        context.destroy(linger=0)


async def test_a_router_of_the_library_answers():
    context = zmq.asyncio.Context()
    try:
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        connection, heard = await connected(port, "DEALER", [b"", b"question"])
        async with asyncio.timeout(10):
            client, *question = await router.recv_multipart()
            assert question == [b"", b"question"]
            await router.send_multipart([client, b"", b"answer"])
            assert await heard.messages.get() == [b"", b"answer"]
        connection.close()
    finally:
        context.destroy(linger=0)


async def test_the_end_of_a_publisher_is_told():
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    _, heard = await connected(port, "SUB", [b"\x01"])
    async with asyncio.timeout(10):
        await heard.is_connected.wait()
        context.destroy(linger=0)
        await heard.reason


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        _GREETING.replace(b"NULL", b"CURV"),
        _GREETING + b"\x04\x0a\x05ERROR\x03no!",
        _GREETING + b"\x02" + b"\xff" * 8,
        b"",
    ],
)
async def test_who_speaks_something_else_is_left(said):
    async def serve(reader, writer):
        writer.write(said)
        if not said:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        _, heard = await connected(server.sockets[0].getsockname()[1], "SUB", [b"\x01"])
        async with asyncio.timeout(10):
            assert await heard.reason
        assert not heard.is_connected.is_set()
