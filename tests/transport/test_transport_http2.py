"""The ngh2 server against clients that are broken, hostile, slow or in a hurry."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest
from ngh2 import ErrorCode, Setting
from raw_client import PREFACE, RawClient, request_headers
from transport_probe import ECHO, FLOOD, FLOOD_MESSAGE, HOLD, PATIENCE_S, Connect, Probe, Start

from extproc.transport.call import Ngh2Call
from extproc.transport.framing import frame
from extproc.transport.limits import KIB, MIB, TransportLimits
from extproc.transport.server import Ngh2Server

GRPC_STATUS = b"grpc-status"


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", bytes(100), PREFACE + b"\xff" * 100],
    ids=["http1", "tls", "zeros", "frames"],
)
async def test_garbage_ends_the_connection_and_nothing_else(start: Start, connect: Connect, garbage: bytes) -> None:
    server = await start()
    client = RawClient(server)
    await client.connect()
    client.writer.write(garbage)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
    client.writer.close()
    assert await connect(server).unary_unary(ECHO)(b"one") == b"one"


@pytest.mark.parametrize("start_of_preface", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half", "no-settings"])
async def test_a_connection_that_never_speaks_is_dropped(start: Start, start_of_preface: bytes) -> None:
    client = RawClient(await start(limits=TransportLimits(handshake_timeout_s=0.1)))
    await client.connect()
    client.writer.write(start_of_preface)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            await client.reader.read()
    client.writer.close()


async def test_a_client_that_falls_silent_is_dropped_with_its_calls(start: Start, probe: Probe) -> None:
    async with RawClient(await start(limits=TransportLimits(handshake_timeout_s=0.1, keepalive_s=0.1))) as client:
        client.request(HOLD)
        await client.flush()
        await probe.until_all_closed(1)  # the client answers no ping, since it does not read


async def test_a_quiet_client_that_answers_pings_stays(start: Start, probe: Probe) -> None:
    async with RawClient(await start(limits=TransportLimits(handshake_timeout_s=0.05, keepalive_s=0.05))) as client:
        client.request(HOLD)
        await client.until(lambda: sum(type(event).__name__ == "PingReceived" for event in client.events) == 5)
        assert probe.open_calls == 1


async def test_bytes_may_arrive_one_by_one(start: Start, probe: Probe) -> None:
    async with RawClient(await start()) as client:
        stream_id = client.request(ECHO, frame(b"first") + frame(b"") + frame(b"x" * 100), end=True)
        for byte in client.http.data_to_send():
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        await client.until(lambda: stream_id in client.closed)
        assert client.data[stream_id] == frame(b"first") + frame(b"") + frame(b"x" * 100)
        assert client.headers[stream_id][GRPC_STATUS] == b"0"
    await probe.until_all_closed(1)


async def test_five_thousand_rapid_resets_are_survived(start: Start, probe: Probe) -> None:
    async with RawClient(await start()) as client:
        for n in range(5000):
            stream_id = client.request(ECHO, frame(b"one"))
            if n % 3 == 0:
                client.writer.write(client.http.data_to_send())  # else headers, message and reset are one write
            client.http.reset_stream(stream_id, ErrorCode.INTERNAL_ERROR)
            if n % 50 == 0:
                await client.flush()
        last = client.request(ECHO, frame(b"last"), end=True)
        await client.until(lambda: last in client.closed)
        assert client.data[last] == frame(b"last")
    await probe.until_all_closed(len(probe.calls))


async def test_resets_beyond_a_finite_limit_end_the_connection(start: Start, probe: Probe) -> None:
    limits = TransportLimits(resets_burst=100, resets_per_second=1)
    async with RawClient(await start(limits=limits)) as client:
        for _ in range(200):
            stream_id = client.request(HOLD)
            await client.flush()
            client.http.reset_stream(stream_id)
            await client.flush()
        await client.until_closed_by_server()
    await probe.until_all_closed(len(probe.calls))


async def test_a_message_and_a_reset_in_one_write_close_the_call_once(start: Start, probe: Probe) -> None:
    async with RawClient(await start()) as client:
        stream_id = client.request(ECHO, frame(b"first"))
        await client.until(lambda: stream_id in client.data)
        client.http.send_data(stream_id, frame(b"second"))
        out = client.http.data_to_send()
        client.http.reset_stream(stream_id)
        client.writer.write(out + client.http.data_to_send())
        await probe.until_all_closed(1)
        assert probe.calls[0].half_closes == 0


async def test_more_calls_than_allowed_wait_or_are_refused(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start(limits=TransportLimits(max_concurrent_streams=10)))
    calls = [channel.stream_stream(ECHO)() for _ in range(30)]

    async def talk(call: grpc.aio.StreamStreamCall) -> None:
        await call.write(b"one")
        assert await call.read() == b"one"
        assert probe.open_calls <= 10
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(talk, calls))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"content_type": "application/json"}, b"415"),
        ({"content_type": "application/grpc-web"}, b"415"),
        ({"content_type": ""}, b"415"),
        ({"method": "GET"}, b"405"),
        ({"content_type": "application/grpc+proto"}, b"200"),
        ({"content_type": "application/grpc;charset=x"}, b"200"),
    ],
)
async def test_what_is_no_grpc_call_gets_an_http_error(start: Start, changes: dict[str, str], status: bytes) -> None:
    async with RawClient(await start()) as client:
        stream_id = client.request(ECHO, frame(b"one"), end=True, **changes)
        await client.until(lambda: stream_id in client.closed)
        assert client.headers[stream_id][b":status"] == status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x01\x00\x00\x00\x03abc", 12),
        (b"<html>", 13),
        (b"\x00\xff\xff\xff\xff", 8),
        (frame(b"whole")[:-1], 13),
        (frame(b"whole") + b"\x00", 13),
    ],
    ids=["compressed", "no-frame", "too-large", "cut-message", "cut-prefix"],
)
async def test_bad_framing_ends_the_call_with_a_status(start: Start, probe: Probe, data: bytes, status: int) -> None:
    async with RawClient(await start()) as client:
        stream_id = client.request(HOLD, data, end=True)
        await client.until(lambda: stream_id in client.closed)
        assert client.headers[stream_id][GRPC_STATUS] == b"%d" % status
        assert client.headers[stream_id][b"grpc-message"]
    await probe.until_all_closed(1)
    assert probe.calls[0].half_closes == 0


async def test_a_status_alone_is_one_header_block(start: Start) -> None:
    # Proxies look for the status of a failed call, for their retry policies, in the response's headers only.
    async with RawClient(await start()) as client:
        stream_id = client.request("/test.Probe/Nothing", frame(b"one"), end=True)
        await client.until(lambda: stream_id in client.closed)
        kinds = [type(event).__name__ for event in client.events if getattr(event, "stream_id", 0) == stream_id]
        assert kinds == ["ResponseReceived", "StreamClosed"]
        assert client.headers[stream_id][GRPC_STATUS] == b"12"


async def test_a_client_that_goes_on_sending_after_the_end_sees_the_status_first(start: Start, probe: Probe) -> None:
    async with RawClient(await start(limits=TransportLimits(max_message_bytes=1000))) as client:
        stream_id = client.request(HOLD, frame(bytes(4 * MIB)))
        await client.until(lambda: stream_id in client.closed)
        assert client.headers[stream_id][GRPC_STATUS] == b"8"
        assert client.closed[stream_id] == ErrorCode.NO_ERROR
    await probe.until_all_closed(1)


async def test_refused_uploads_do_not_use_up_the_connection(start: Start, connect: Connect, probe: Probe) -> None:
    # With manual window updates, 320 of these stalled a connection for good.
    limits = TransportLimits(max_message_bytes=1000, connection_window_bytes=256 * KIB)
    channel = connect(await start(limits=limits))
    for _ in range(100):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await channel.unary_unary(HOLD)(bytes(1 * MIB), timeout=PATIENCE_S)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await channel.unary_unary(ECHO)(b"next", timeout=PATIENCE_S) == b"next"


async def test_a_call_whose_client_does_not_read_is_not_read_from(start: Start, probe: Probe) -> None:
    limits = TransportLimits(
        stream_window_bytes=64 * KIB, stream_queue_high_bytes=32 * KIB, stream_queue_low_bytes=8 * KIB
    )
    message = frame(b"m" * 8000)
    async with RawClient(await start(limits=limits), {Setting.INITIAL_WINDOW_SIZE: 0}) as client:
        slow = client.request(ECHO)
        for _ in range(200):
            client.http.send_data(slow, message)
        quick = client.request(HOLD, frame(b"one"), end=True)
        await client.until(lambda: len(probe.calls) == 2 and probe.calls[1].half_closes == 1)
        client.http.ping()
        await client.until(lambda: any(type(event).__name__ == "PingAcknowledged" for event in client.events))
        taken_bytes = sum(map(len, probe.calls[0].received))
        # What is over the mark when it is noticed, with the window that it came in, and one window more.
        assert taken_bytes <= 32 * KIB + 2 * 64 * KIB
        assert client.http.queued_body_size(slow) > 1_000_000
        # What held it back is gone: everything arrives.
        client.http.update_settings({Setting.INITIAL_WINDOW_SIZE: 1 * MIB})
        client.http.end_stream(slow)
        await client.until(lambda: slow in client.closed)
        assert client.data[slow] == message * 200
        assert client.headers[slow][GRPC_STATUS] == b"0"
        probe.calls[1].call.finish()
        await client.until(lambda: quick in client.closed)


async def test_a_bulk_echo_read_late_arrives_whole(start: Start, probe: Probe) -> None:
    limits = TransportLimits(stream_window_bytes=64 * KIB, stream_queue_high_bytes=32 * KIB, stream_queue_low_bytes=0)
    message = frame(b"m" * 8000)
    settings = {Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}
    async with RawClient(await start(limits=limits), settings) as client:
        client.http.set_local_window_size(2**31 - 1)
        slow = client.request(ECHO)
        for _ in range(5000):
            client.http.send_data(slow, message)
        client.http.end_stream(slow)
        # Everything is sent, as far as the server lets it, before anything is read.
        client.writer.write(client.http.data_to_send())
        await probe.until(lambda: bool(probe.calls and probe.calls[0].received))
        await client.until(lambda: slow in client.closed)
        assert client.data[slow] == message * 5000
    await probe.until_all_closed(1)


async def test_a_call_that_floods_a_client_that_does_not_read_is_reset(start: Start, probe: Probe) -> None:
    limits = TransportLimits(stream_queue_limit_bytes=1 * MIB)
    async with RawClient(await start(limits=limits), {Setting.INITIAL_WINDOW_SIZE: 0}) as client:
        flooding = client.request(FLOOD, frame(b"100"))
        other = client.request(ECHO, frame(b""), end=True)
        await client.until(lambda: flooding in client.closed)
        assert client.closed[flooding] == ErrorCode.ENHANCE_YOUR_CALM
        client.http.update_settings({Setting.INITIAL_WINDOW_SIZE: 1000})
        await client.until(lambda: other in client.closed)
        assert client.closed[other] == ErrorCode.NO_ERROR
    await probe.until_all_closed(2)


async def test_the_largest_call_is_reset_where_a_connection_holds_too_much(start: Start, probe: Probe) -> None:
    limits = TransportLimits(connection_buffer_bytes=1 * MIB)
    async with RawClient(await start(limits=limits), {Setting.INITIAL_WINDOW_SIZE: 0}) as client:
        small, large = client.request(FLOOD, frame(b"6")), client.request(FLOOD, frame(b"11"))
        await client.until(lambda: large in client.closed)
        assert client.closed == {large: ErrorCode.ENHANCE_YOUR_CALM}
        client.http.update_settings({Setting.INITIAL_WINDOW_SIZE: 1 * MIB})
        await client.until(lambda: len(client.data.get(small, b"")) == 6 * len(frame(FLOOD_MESSAGE)))


async def test_unfinished_messages_of_one_connection_are_bounded(start: Start, probe: Probe) -> None:
    async with RawClient(await start(limits=TransportLimits(connection_buffer_bytes=1 * MIB))) as client:
        streams = [client.request(HOLD, frame(bytes(201 * KIB))[: 200 * KIB]) for _ in range(10)]
        await client.until(lambda: len(client.closed) == 5)
        assert {client.headers[stream_id][GRPC_STATUS] for stream_id in client.closed} == {b"8"}
        survivor = next(stream_id for stream_id in streams if stream_id not in client.closed)
        client.http.send_data(survivor, frame(bytes(201 * KIB))[200 * KIB :], end_stream=True)
        await client.flush()
        await probe.until(lambda: any(handler.half_closes for handler in probe.calls))


async def test_calls_sent_before_the_client_heard_of_the_stop_are_served(start: Start, probe: Probe) -> None:
    server = await start()
    async with RawClient(server) as client:
        running = client.request(HOLD, frame(b"one"), end=True)
        await client.until(lambda: bool(probe.calls and probe.calls[0].half_closes))
        stop = asyncio.create_task(server.stop(PATIENCE_S))
        await asyncio.sleep(0)
        late = client.request(ECHO, frame(b"late"), end=True)
        await client.until(lambda: late in client.closed and client.goaways == 2)
        assert client.data[late] == frame(b"late")
        probe.calls[0].call.send(b"answer")
        probe.calls[0].call.finish()
        await client.until(lambda: running in client.closed)
        assert client.headers[running][GRPC_STATUS] == b"0"
        async with asyncio.timeout(PATIENCE_S):
            await stop
        await client.until_closed_by_server()


async def test_a_stop_does_not_wait_for_a_client_that_does_not_read(start: Start, probe: Probe) -> None:
    server = await start(limits=TransportLimits(close_timeout_s=0.1))
    async with RawClient(server, {Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) as client:
        client.http.set_local_window_size(2**31 - 1)
        client.request(FLOOD, frame(b"1000"))
        await client.flush()
        await probe.until(lambda: bool(probe.calls and probe.calls[0].received))
        async with asyncio.timeout(PATIENCE_S):
            await server.stop(0.1)
        assert probe.calls[0].closes == 1


async def test_a_header_list_over_the_limit_ends_the_connection(start: Start, connect: Connect) -> None:
    server = await start()
    async with RawClient(server) as client:
        client.http.send_request([*request_headers(ECHO), *((b"x-%d" % n, b"v" * 1000) for n in range(80))])
        await client.flush()
        await client.until_closed_by_server()
    assert await connect(server).unary_unary(ECHO)(b"one") == b"one"


async def test_a_stop_while_clients_are_silent_or_half_connected_ends(start: Start) -> None:
    server = await start()
    client = RawClient(server)
    await client.connect()
    client.writer.write(PREFACE[:5])
    await client.writer.drain()
    async with asyncio.timeout(PATIENCE_S):
        await server.stop(10 * PATIENCE_S)
    client.writer.transport.abort()


async def test_a_handler_can_break_a_call_as_a_crash_would(start: Start, connect: Connect, probe: Probe) -> None:
    async with RawClient(await start()) as client:
        broken, other = client.request(HOLD, frame(b"one")), client.request(ECHO, frame(b"one"), end=True)
        await client.until(lambda: other in client.closed)
        call = probe.calls[0].call
        assert isinstance(call, Ngh2Call)
        call.reset()
        call.finish()
        await client.until(lambda: broken in client.closed)
        assert client.closed[broken] == ErrorCode.INTERNAL_ERROR
        assert broken not in client.headers
    await probe.until_all_closed(2)


async def test_a_server_can_break_all_connections_as_a_crash_would(
    start: Start, connect: Connect, probe: Probe
) -> None:
    server = await start()
    assert isinstance(server, Ngh2Server)
    call = connect(server).stream_stream(HOLD)()
    await call.write(b"one")
    await probe.until(lambda: bool(probe.calls))
    server.abort()
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    await probe.until_all_closed(1)
