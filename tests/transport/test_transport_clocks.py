"""Connections that end because of their age, of idleness, or of silence; a process that was stopped forgives."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from raw_client import RawClient
from transport_probe import ECHO, HOLD, PATIENCE_S, Connect, Probe, Start

from extproc.transport.clocks import Clocks
from extproc.transport.framing import frame
from extproc.transport.limits import TransportLimits
from extproc.transport.serving import TransportName


class Timed:
    """A connection that notes what its clocks ask of it."""

    def __init__(self) -> None:
        self.calls = self.opened_calls = 0
        self.asked: list[str] = []
        self.changed = asyncio.Event()

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.changed.set()

    def ping(self) -> None:
        self._note("ping")

    def drain(self) -> None:
        self._note("drain")

    def terminate(self) -> None:
        self._note("terminate")

    def abort(self) -> None:
        self._note("abort")

    async def until_asked(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            self.changed.clear()
            await self.changed.wait()


async def test_an_idle_connection_is_drained(start: Start) -> None:
    async with RawClient(await start(limits=TransportLimits(max_idle_s=0.1))) as client:
        await client.until(lambda: client.goaways == 1)  # a client without calls goes at the first


async def test_a_connection_with_an_open_call_is_not_idle(start: Start, probe: Probe) -> None:
    server = await start(limits=TransportLimits(max_idle_s=0.1))
    async with RawClient(server) as busy:
        held = busy.request(HOLD, frame(b"one"))
        await busy.flush()
        for _ in range(3):
            async with RawClient(server) as idle:
                await idle.until(lambda: idle.goaways == 1)
        probe.calls[0].call.finish()
        await busy.until(lambda: held in busy.closed)
        assert busy.goaways == 0
        await busy.until(lambda: busy.goaways == 1)


async def test_an_old_connection_takes_no_new_calls_and_ends_after_its_last(start: Start, probe: Probe) -> None:
    async with RawClient(await start(limits=TransportLimits(max_age_s=0.1))) as client:
        held = client.request(HOLD, frame(b"one"))
        await client.until(lambda: client.goaways == 2)
        probe.calls[0].call.send(b"answer")
        probe.calls[0].call.finish()
        await client.until(lambda: held in client.closed)
        assert client.data[held] == frame(b"answer")
        await client.until_closed_by_server()


async def test_calls_of_an_old_connection_are_reset_after_the_grace(start: Start, probe: Probe) -> None:
    limits = TransportLimits(max_age_s=0.1, max_age_grace_s=0.1)
    async with RawClient(await start(limits=limits)) as client:
        client.request(HOLD, frame(b"one"))
        await client.until(lambda: client.goaways == 2)
        await client.until_closed_by_server()
    await probe.until_all_closed(1)


@pytest.mark.parametrize("transport", ["ngh2", "grpcio"], indirect=False)
async def test_no_call_fails_while_connections_grow_old(
    start: Start, connect: Connect, probe: Probe, transport: TransportName
) -> None:
    server = await start(limits=TransportLimits(max_age_s=0.05))
    channel = connect(server)

    async def talk() -> None:
        for _ in range(40):
            call = channel.stream_stream(ECHO)()
            for _ in range(3):
                await call.write(b"one")
                assert await call.read() == b"one"
                await asyncio.sleep(0.001)
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(talk() for _ in range(10)))
    await probe.until_all_closed(400)


async def test_a_silent_connection_is_pinged_and_then_dropped() -> None:
    connection = Timed()
    clocks = Clocks(connection, TransportLimits(handshake_timeout_s=0.01, keepalive_s=0.01), asyncio.get_running_loop())
    clocks.start()
    clocks.greeted = True
    await connection.until_asked()
    await connection.until_asked()
    assert connection.asked == ["ping", "abort"]
    clocks.cancel()


async def test_what_waited_in_the_socket_while_the_process_was_stopped_counts() -> None:
    connection = Timed()
    clocks = Clocks(connection, TransportLimits(handshake_timeout_s=0.01, keepalive_s=0.01), asyncio.get_running_loop())
    clocks.start()
    clocks.greeted = True
    await connection.until_asked()
    await asyncio.sleep(0.03)  # the next tick finds silence, and looks a second time
    clocks.heard = True
    await connection.until_asked()
    assert connection.asked == ["ping", "ping"]
    clocks.cancel()


def test_times_that_make_no_sense_are_refused() -> None:
    for name in ("max_idle_s", "max_age_s", "max_age_grace_s"):
        with pytest.raises(ValueError, match=name):
            TransportLimits(**{name: 0})
