"""One connection without a socket: how it batches, and that no bytes can break it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ngh2 import Configuration, Connection, DataReceived, NGH2Error, Role
from raw_client import request_headers
from transport_probe import ECHO, END, FAIL, FLOOD, HOLD, Probe

from extproc.transport.connection import Ngh2Connection, configuration
from extproc.transport.framing import frame
from extproc.transport.limits import KIB, TransportLimits


class FakeTransport(asyncio.Transport):
    """Keeps what is written; says to pause when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self.ended:
            self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


class Pair:
    """A connection and its client, joined by hand."""

    def __init__(self, probe: Probe, limits: TransportLimits | None = None) -> None:
        limits = limits or TransportLimits()
        self.lost = 0
        self.server = Ngh2Connection(
            probe.service(), limits, configuration(limits), opened=lambda _: None, lost=self._on_lost
        )
        self.transport = FakeTransport()
        self.server.connection_made(self.transport)
        self.client = Connection(Role.CLIENT, Configuration())
        self.client.initiate_connection({})
        self.server.data_received(self.client.data_to_send())
        self.take()

    def _on_lost(self, _: Ngh2Connection) -> None:
        self.lost += 1

    def request(self, path: str, data: bytes = b"") -> int:
        stream_id = self.client.send_request(request_headers(path))
        self.client.send_data(stream_id, data)
        return stream_id

    def take(self) -> list[bytes]:
        """What the server has written since, given to the client too."""
        writes, self.transport.writes = self.transport.writes, []
        for data in writes:
            self.client.receive_data(data)
        return writes

    def messages(self) -> list[tuple[int, bytes]]:
        return [(event.stream_id, event.data) for event in self.client.events() if isinstance(event, DataReceived)]


async def test_one_read_is_answered_by_one_write(probe: Probe) -> None:
    pair = Pair(probe)
    streams = [pair.request(ECHO, frame(b"one") + frame(b"two")) for _ in range(64)]
    pair.server.data_received(pair.client.data_to_send())
    assert len(pair.take()) == 1
    # The messages of one call leave as one piece of data.
    assert pair.messages() == [(stream_id, frame(b"one") + frame(b"two")) for stream_id in streams]
    pair.server.connection_lost(None)


async def test_what_is_sent_later_leaves_in_one_write_per_loop_turn(probe: Probe) -> None:
    pair = Pair(probe)
    for _ in range(64):
        pair.request(HOLD)
    pair.server.data_received(pair.client.data_to_send())
    pair.take()
    for handler in probe.calls:
        handler.call.send(b"one")
        handler.call.send(b"two")
    assert pair.take() == []
    await asyncio.sleep(0)
    assert len(pair.take()) == 1
    assert {data for _, data in pair.messages()} == {frame(b"one") + frame(b"two")}
    pair.server.connection_lost(None)


async def test_while_the_socket_takes_nothing_nothing_is_written(probe: Probe) -> None:
    pair = Pair(probe)
    pair.request(ECHO)
    pair.request(FLOOD, frame(b"1"))
    pair.server.pause_writing()
    pair.server.data_received(pair.client.data_to_send())
    assert pair.take() == []
    pair.server.resume_writing()
    assert pair.take() != []
    pair.server.connection_lost(None)


async def test_a_client_that_takes_nothing_at_all_is_dropped_at_the_limit(probe: Probe) -> None:
    pair = Pair(probe, TransportLimits(connection_buffer_bytes=100 * KIB))
    pair.request(FLOOD, frame(b"2"))
    pair.server.pause_writing()
    pair.server.data_received(pair.client.data_to_send())
    assert pair.transport.ended
    pair.server.connection_lost(None)
    await probe.until_all_closed(1)


async def test_a_handler_may_speak_on_other_calls_at_any_time(probe: Probe) -> None:
    first, second = Pair(probe), Pair(probe)
    first.request(HOLD)
    second.request(HOLD)
    for pair in (first, second):
        pair.server.data_received(pair.client.data_to_send())
        pair.take()
    here, there = probe.calls
    here.closed = lambda: (there.call.send(b"the other is gone"), there.call.finish())  # type: ignore[method-assign]
    first.server.connection_lost(None)
    await asyncio.sleep(0)
    second.take()
    assert [data for _, data in second.messages()] == [frame(b"the other is gone")]
    here.call.send(b"too late")
    here.call.finish()
    await asyncio.sleep(0)
    assert first.take() == []
    second.server.connection_lost(None)


PATHS = [ECHO, HOLD, END, FAIL, FLOOD, "/unknown"]
BODIES = [frame(b"1"), frame(b"7 no"), frame(b"")[:3], b"\x01\x00\x00\x00\x00", frame(b"3") + frame(b"0")]

actions = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.sampled_from(PATHS), st.sampled_from(BODIES)),
        st.tuples(st.just("data"), st.integers(0, 20), st.sampled_from(BODIES)),
        st.tuples(st.just("end"), st.integers(0, 20), st.none()),
        st.tuples(st.just("reset"), st.integers(0, 20), st.none()),
        st.tuples(st.just("read"), st.none(), st.none()),
        st.tuples(st.just("finish"), st.integers(0, 20), st.none()),
        st.tuples(st.just("send"), st.integers(0, 20), st.none()),
        st.tuples(st.just("pause"), st.none(), st.none()),
        st.tuples(st.just("resume"), st.none(), st.none()),
        st.tuples(st.just("noise"), st.integers(0, 10_000), st.binary(max_size=12)),
        st.tuples(st.sampled_from(["drain", "terminate", "goaway"]), st.none(), st.none()),
    ),
    max_size=40,
)


@given(actions=actions, size=st.integers(1, 400))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_every_call_is_closed_once(actions: list[tuple[str, object, object]], size: int) -> None:
    asyncio.run(play(actions, size))


async def play(actions: list[tuple[str, object, object]], size: int) -> None:
    """Do what the actions say on both sides; bytes reach the server in pieces of `size`, some of them spoilt."""
    probe = Probe()
    limits = TransportLimits(stream_queue_high_bytes=1000, stream_queue_low_bytes=10, connection_buffer_bytes=500_000)
    pair = Pair(probe, limits)
    client, server = pair.client, pair.server
    streams: list[int] = []
    on_the_way = bytearray()

    def deliver() -> None:
        on_the_way.extend(client.data_to_send())
        for at in range(0, len(on_the_way), size):
            if not pair.transport.ended:
                server.data_received(bytes(on_the_way[at : at + size]))
        on_the_way.clear()
        pair.take()
        client.events()

    for name, first, second in actions:
        number = first if isinstance(first, int) else 0
        with contextlib.suppress(NGH2Error):
            match name:
                case "request":
                    streams.append(pair.request(cast(str, first), cast(bytes, second)))
                case "data" if streams:
                    client.send_data(streams[number % len(streams)], cast(bytes, second))
                case "end" if streams:
                    client.end_stream(streams[number % len(streams)])
                case "reset" if streams:
                    client.reset_stream(streams[number % len(streams)])
                case "goaway":
                    client.send_goaway()
                case "noise":
                    on_the_way.extend(client.data_to_send())
                    at = number % (len(on_the_way) + 1)
                    on_the_way[at : at + len(cast(bytes, second))] = cast(bytes, second)
                case "read":
                    deliver()
                    await asyncio.sleep(0)
        match name:
            case "send" if probe.calls:
                probe.calls[number % len(probe.calls)].call.send(b"later")
            case "finish" if probe.calls:
                probe.calls[number % len(probe.calls)].call.finish(number % 17)
            case "pause":
                server.pause_writing()
            case "resume":
                server.resume_writing()
            case "drain":
                server.drain()
            case "terminate":
                server.terminate()
    with contextlib.suppress(NGH2Error):
        deliver()
    server.connection_lost(None)
    await asyncio.sleep(0)
    assert [handler.closes for handler in probe.calls] == [1] * len(probe.calls)
    assert server.calls == 0
    assert pair.lost == 1
