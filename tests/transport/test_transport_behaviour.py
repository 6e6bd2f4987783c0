"""What a server does for gRPC clients, the same for both transports; the clients are grpcio's, also behind Envoy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest
from transport_probe import ECHO, END, FAIL, FAIL_AT_CLOSE, FAIL_AT_OPEN, HOLD, PATIENCE_S, Connect, Probe, Start

from extproc.transport.adapters import server_streaming, unary
from extproc.transport.limits import MIB, TransportLimits
from extproc.transport.serving import TransportName
from extproc.transport.status import RpcError, Status


@pytest.fixture(params=["ngh2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    return request.param


@pytest.fixture(params=["direct", pytest.param("envoy", marks=pytest.mark.envoy)])
def via(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("proxy") if request.param == "envoy" else None


async def read_to_failure(call: grpc.aio.UnaryStreamCall) -> tuple[list[bytes], grpc.aio.AioRpcError]:
    """The messages that a call brings before it fails."""
    received = []
    try:
        async for message in call:
            received.append(message)
    except grpc.aio.AioRpcError as error:
        return received, error
    raise AssertionError(f"the call ended well after {len(received)} messages")


async def first_failure(attempt: Callable[[], Awaitable[object]]) -> grpc.StatusCode:
    """Try until it fails: that a stop is under way shows by this."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await attempt()
            except grpc.aio.AioRpcError as error:
                return error.code()


async def test_a_unary_call_is_answered(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start())
    assert await channel.unary_unary(ECHO)(b"one") == b"one"
    await probe.until_all_closed(1)
    assert probe.calls[0].half_closes == 1


async def test_an_empty_message_is_a_message(start: Start, connect: Connect) -> None:
    channel = connect(await start())
    assert await channel.unary_unary(ECHO)(b"") == b""


async def test_a_unix_socket_serves_too(start: Start, connect: Connect, via: str | None, tmp_path) -> None:
    if via:
        pytest.skip("the proxy knows addresses only")
    server = await start(listen=f"unix:{tmp_path}/run/server.sock")
    assert server.address == f"unix:{tmp_path}/run/server.sock"
    assert await connect(server).unary_unary(ECHO)(b"one") == b"one"


async def test_messages_of_all_sizes_come_back_in_order(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start())
    messages = [bytes([n % 256]) * (n * n % 20_011) for n in range(1000)]
    call = channel.stream_stream(ECHO)()

    async def send() -> None:
        for message in messages:
            await call.write(message)
        await call.done_writing()

    sender = asyncio.create_task(send())
    assert [message async for message in call] == messages
    await sender
    assert await call.code() is grpc.StatusCode.OK
    await probe.until_all_closed(1)


async def test_a_message_of_20_mb_passes_both_ways_where_the_limit_allows_it(start: Start, connect: Connect) -> None:
    channel = connect(await start(limits=TransportLimits(max_message_bytes=32 * MIB)))
    message = bytes(range(256)) * (20 * MIB // 256)
    call = channel.stream_stream(ECHO)()
    for _ in range(2):
        await call.write(message)
        assert await call.read() == message


async def test_a_message_over_the_limit_is_refused(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start(limits=TransportLimits(max_message_bytes=1000)))
    assert len(await channel.unary_unary(ECHO)(bytes(1000))) == 1000
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await channel.unary_unary(ECHO)(bytes(5 * MIB))
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await channel.unary_unary(ECHO)(b"next") == b"next"
    await probe.until_all_closed(len(probe.calls))
    assert not any(len(message) > 1000 for handler in probe.calls for message in handler.received)


async def test_a_cancelled_call_is_closed_once(
    start: Start, connect: Connect, probe: Probe, transport: TransportName
) -> None:
    channel = connect(await start())
    call = channel.stream_stream(HOLD)()
    await call.write(b"one")
    await probe.until(lambda: bool(probe.calls and probe.calls[0].received))
    call.cancel()
    await probe.until_all_closed(1)
    if transport == "ngh2":  # grpc.aio cannot always tell a reset from an end
        assert probe.calls[0].half_closes == 0
    probe.calls[0].call.send(b"too late")
    probe.calls[0].call.finish()
    assert await channel.unary_unary(ECHO)(b"next") == b"next"


async def test_a_call_past_its_deadline_is_closed_once(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start())
    await channel.channel_ready()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await channel.unary_unary(HOLD)(b"one", timeout=0.2)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await probe.until(lambda: not probe.open_calls)
    assert all(handler.closes == 1 for handler in probe.calls)


async def test_a_lost_connection_closes_its_calls(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start())
    calls = [channel.stream_stream(HOLD)() for _ in range(10)]
    for call in calls:
        await call.write(b"one")
    await probe.until(lambda: len(probe.calls) == 10)
    await channel.close()
    await probe.until_all_closed(10)


async def test_an_unknown_method_is_unimplemented(start: Start, connect: Connect) -> None:
    channel = connect(await start())
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await channel.unary_unary("/test.Probe/Nothing")(b"one")
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await channel.unary_unary(ECHO)(b"next") == b"next"


async def test_the_handler_sees_the_request_headers(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start())
    metadata = (("x-text", "some text"), ("x-twice", "1"), ("x-twice", "2"), ("x-raw-bin", b"\x00\xff\x01"))
    await channel.unary_unary(ECHO)(b"one", metadata=metadata)
    seen = probe.calls[0].call.metadata
    assert {(b":path", ECHO.encode()), (b":method", b"POST"), (b"x-text", b"some text")} <= set(seen)
    assert [value for name, value in seen if name == b"x-twice"] == [b"1", b"2"]
    assert dict(seen)[b"x-raw-bin"] == b"AP8B"


@pytest.mark.parametrize(
    "details",
    ["", "plain", "100 % of %20", "line\nbreak\tand\x00nul", "žluťoučký kůň 🐎", "\u2028 \ufffe", "a" * 3000],
    ids=["empty", "plain", "percent", "control", "unicode", "separators", "long"],
)
async def test_any_status_and_details_arrive(start: Start, connect: Connect, probe: Probe, details: str) -> None:
    channel = connect(await start())
    for status in range(1, 17):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await channel.unary_unary(END)(f"{status} {details}".encode())
        assert failure.value.code().value[0] == status
        assert failure.value.details() == details
    await probe.until_all_closed(16)


async def test_a_call_may_end_well_without_an_answer(start: Start, connect: Connect, probe: Probe) -> None:
    call = connect(await start()).stream_stream(END)()
    await call.write(b"0")
    assert [message async for message in call] == []
    assert await call.code() is grpc.StatusCode.OK
    await probe.until_all_closed(1)


async def test_answers_before_an_error_arrive(start: Start, connect: Connect, probe: Probe) -> None:
    call = connect(await start()).stream_stream(HOLD)()
    await call.write(b"go")
    await probe.until(lambda: bool(probe.calls))
    for n in range(100):
        probe.calls[0].call.send(b"%d" % n)
    probe.calls[0].call.finish(Status.ABORTED, "enough")
    received, failure = await read_to_failure(call)
    assert received == [b"%d" % n for n in range(100)]
    assert (failure.code(), failure.details()) == (grpc.StatusCode.ABORTED, "enough")


@pytest.mark.parametrize("method", [FAIL, FAIL_AT_OPEN])
async def test_a_failing_handler_is_an_internal_error_and_the_connection_lives_on(
    start: Start, connect: Connect, probe: Probe, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    channel = connect(await start())
    held = channel.stream_stream(ECHO)()
    await held.write(b"before")
    assert await held.read() == b"before"
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await channel.unary_unary(method)(b"one")
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (failure.value.details() or "")
    (record,) = [record for record in caplog.records if record.name.startswith("extproc")]
    assert record.levelno == logging.ERROR
    assert record.exc_info
    await held.write(b"after")
    assert await held.read() == b"after"
    held.cancel()
    await probe.until_all_closed(len(probe.calls))


async def test_a_handler_that_fails_at_the_end_harms_nobody(
    start: Start, connect: Connect, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    channel = connect(await start())
    for _ in range(3):
        assert await channel.unary_unary(FAIL_AT_CLOSE)(b"one") == b"one"
    await probe.until_all_closed(3)
    assert sum(record.exc_info is not None for record in caplog.records) == 3


async def test_a_thousand_calls_run_at_once(start: Start, connect: Connect, probe: Probe) -> None:
    channel = connect(await start())
    calls = [channel.stream_stream(ECHO)() for _ in range(1000)]

    async def talk(n: int, call: grpc.aio.StreamStreamCall) -> None:
        for round_ in range(2):
            await call.write(b"%d %d" % (n, round_))
            assert await call.read() == b"%d %d" % (n, round_)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(talk(n, call) for n, call in enumerate(calls)))
        assert probe.open_calls == 1000
        for call in calls[::2]:
            await call.done_writing()
        for call in calls[1::2]:
            call.cancel()
    await probe.until_all_closed(1000)


async def test_a_stop_lets_running_calls_finish_and_takes_no_new_ones(
    start: Start, connect: Connect, probe: Probe
) -> None:
    server = await start()
    channel = connect(server)
    calls = [channel.stream_stream(ECHO)() for _ in range(20)]
    for call in calls:
        await call.write(b"before")
        assert await call.read() == b"before"
    stop = asyncio.create_task(server.stop(PATIENCE_S))
    assert await first_failure(lambda: connect(server).unary_unary(ECHO)(b"new")) is grpc.StatusCode.UNAVAILABLE
    for call in calls:
        await call.write(b"during")
        assert await call.read() == b"during"
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
    async with asyncio.timeout(PATIENCE_S):
        await stop
    await probe.until_all_closed(len(probe.calls))


async def test_a_stop_resets_what_still_runs_after_the_grace(start: Start, connect: Connect, probe: Probe) -> None:
    server = await start()
    channel = connect(server)
    calls = [channel.stream_stream(HOLD)() for _ in range(20)]
    for call in calls:
        await call.write(b"one")
    await probe.until(lambda: sum(len(handler.received) for handler in probe.calls) == 20)
    async with asyncio.timeout(PATIENCE_S):
        await server.stop(0.1)
    assert [handler.closes for handler in probe.calls] == [1] * 20
    for call in calls:
        assert await call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


async def test_a_second_stop_may_shorten_the_grace(start: Start, connect: Connect, probe: Probe) -> None:
    server = await start()
    call = connect(server).stream_stream(HOLD)()
    await call.write(b"one")
    await probe.until(lambda: bool(probe.calls))
    patient = asyncio.create_task(server.stop(10 * PATIENCE_S))
    async with asyncio.timeout(PATIENCE_S):
        await server.stop(0.1)
        await patient
    assert probe.calls[0].closes == 1


async def test_a_stop_with_nothing_running_is_quick_and_may_be_repeated(start: Start, connect: Connect) -> None:
    server = await start()
    await connect(server).unary_unary(ECHO)(b"one")
    async with asyncio.timeout(PATIENCE_S):
        await server.stop(10 * PATIENCE_S)
        await server.stop(10 * PATIENCE_S)


async def test_plain_functions_serve_unary_and_streaming_methods(start: Start, connect: Connect) -> None:
    async def later(request: bytes) -> bytes:
        await asyncio.sleep(0)
        return request.upper()

    async def count(request: bytes):
        for n in range(int(request)):
            yield b"%d" % n
        raise RpcError(Status.OUT_OF_RANGE, "no more numbers")

    def refuse(request: bytes) -> bytes:
        raise RpcError(Status.NOT_FOUND, f"no {request.decode()}")

    async def refuse_later(request: bytes) -> bytes:
        return refuse(request)

    channel = connect(
        await start(
            {
                "/test.Plain/Upper": unary(bytes.upper),
                "/test.Plain/Later": unary(later),
                "/test.Plain/Count": server_streaming(count),
                "/test.Plain/Refuse": unary(refuse),
                "/test.Plain/RefuseLater": unary(refuse_later),
            }
        )
    )
    assert await channel.unary_unary("/test.Plain/Upper")(b"word") == b"WORD"
    assert await channel.unary_unary("/test.Plain/Later")(b"word") == b"WORD"
    for path in ("/test.Plain/Refuse", "/test.Plain/RefuseLater"):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await channel.unary_unary(path)(b"word")
        assert (failure.value.code(), failure.value.details()) == (grpc.StatusCode.NOT_FOUND, "no word")
    call = channel.unary_stream("/test.Plain/Count")(b"3")
    received, failure = await read_to_failure(call)
    assert received == [b"0", b"1", b"2"]
    assert failure.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_a_streaming_function_is_cancelled_when_its_client_is_gone(start: Start, connect: Connect) -> None:
    cancelled = asyncio.Event()

    async def forever(request: bytes):
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    call = connect(await start({"/test.Plain/Forever": server_streaming(forever)})).unary_stream("/test.Plain/Forever")(
        b""
    )
    assert await call.read() == b"first"
    call.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await cancelled.wait()


@pytest.mark.parametrize("requests", [0, 2])
async def test_a_plain_function_takes_exactly_one_request(start: Start, connect: Connect, requests: int) -> None:
    call = connect(await start({"/test.Plain/Upper": unary(bytes.upper)})).stream_stream("/test.Plain/Upper")()
    for _ in range(requests):
        await call.write(b"word")
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.INTERNAL
