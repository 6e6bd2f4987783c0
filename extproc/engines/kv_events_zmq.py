"""One publisher of KV events over ZeroMQ (vLLM, SGLang): its batches in order, with what was lost asked for again.

A PUB socket drops what a slow subscriber does not take, and says nothing of it or of a restart. So:

- A number that is missing is asked for at the publisher's replay socket, if it has one, from the last batch that came
  on: that one must come again byte for byte, or this is another life of the publisher. Live batches wait meanwhile.
- At the beginning, and in each life of the publisher, all that it still keeps is asked for.
- After a lost connection the same is done, whatever number comes next. Without a replay socket all is void then.

What cannot be filled is told as `lost`, and what follows stands for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

import zmq
from msgspec import Struct
from zmq.utils.monitor import parse_monitor_message

MAX_BATCH_BYTES = 4 << 20
"""Of one message; the library drops the connection of who sends more."""

_QUEUED = 256  # messages that the library holds for us; further ones wait at the publisher
_MOST_HELD_BYTES = 64 << 20  # live batches that wait for a replay
_GATHER_S = 0.005  # after something came: how long nothing is looked for
_TURN_S = 0.001  # what one turn of the event loop may be kept busy, give or take one message
_REPLAY_TIMEOUT_S = 5.0
_RECONNECT_MS, _RECONNECT_MOST_MS = 100, 10_000
_HEARTBEAT_MS = 10_000  # a peer that vanished is noticed
_END = (1 << 64) - 1
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class Publisher(Struct, frozen=True):
    """Where an engine's rank publishes."""

    endpoint: str  # such as tcp://10.0.0.1:5557
    replay_endpoint: str | None = None
    topic: str = ""


class Receiver(Protocol):
    """Who gets the batches. Called in the event loop; must not raise."""

    def connected(self, connected: bool) -> None:
        """The publisher is reached, or no more."""
        ...

    def batch(self, sequence: int, payload: bytes) -> None:
        """The next one."""
        ...

    def lost(self, cause: str) -> None:
        """What came before says nothing about what comes next: `gap`, `ended` or `restarted`."""
        ...


class ZmqSubscription:
    """Runs from its making to `close`, connecting again as often as it must."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], publisher: Publisher, receiver: Receiver) -> None:
        """Raises zmq.ZMQError for an address that makes no sense."""
        self._context = context
        self._publisher = publisher
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._last: tuple[int, bytes] | None = None  # the batch that was handed on last
        self._replayed_to = -1  # live batches up to here came with a replay already
        self._held: deque[tuple[int, bytes]] | None = None  # live batches, while a replay runs
        self._held_bytes = 0
        self._must_match: tuple[int, bytes] | None = None  # what the replay has to begin with
        self._going_on: asyncio.Handle | None = None  # with what was held
        self._progress = False  # of the replay
        self._timeout: asyncio.TimerHandle | None = None
        self._dealer: _Socket | None = None
        self._live = self._open(zmq.SUB, self._came)
        self._live.socket.setsockopt(zmq.SUBSCRIBE, publisher.topic.encode())
        monitor = self._live.socket.get_monitor_socket(_WATCHED)
        self._monitor = _Socket(self._loop, monitor, self._watch)
        self._live.socket.connect(publisher.endpoint)

    def close(self) -> None:
        """End; the receiver hears nothing more."""
        self._end_replay()
        if self._going_on is not None:
            self._going_on.cancel()
        self._live.socket.disable_monitor()
        self._monitor.close()
        self._live.close()

    def _open(self, kind: int, came: Callable[[list[bytes]], None]) -> _Socket:
        socket = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, _QUEUED),
            (zmq.MAXMSGSIZE, MAX_BATCH_BYTES),
            (zmq.RECONNECT_IVL, _RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, _RECONNECT_MOST_MS),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS),
            (zmq.IPV6, 1),
        ):
            socket.setsockopt(option, value)
        return _Socket(self._loop, socket, came)

    # What is live.

    def _watch(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._receiver.connected(connected)
        if self._publisher.replay_endpoint is not None:
            if connected:
                self._ask(self._last)
        elif not connected and self._last is not None:
            self._void("ended")

    def _came(self, frames: list[bytes]) -> None:
        """One live message. Hot."""
        if len(frames) != 3 or len(frames[1]) != 8:
            return
        sequence = int.from_bytes(frames[1], "big")
        payload = frames[2]
        if self._held is not None:
            self._hold(sequence, payload)
            return
        last = self._last
        if last is not None and sequence == last[0] + 1:
            self._take(sequence, payload)
        elif (sequence, payload) != last and sequence > self._replayed_to:
            self._missing(sequence, payload)

    def _missing(self, sequence: int, payload: bytes) -> None:
        """It is the first, something lies between the last one and it, or it comes from another life."""
        last = self._last
        if self._publisher.replay_endpoint is not None:
            self._held = deque()
            self._held_bytes = 0
            self._hold(sequence, payload)
            self._ask(last)
        else:
            if last is not None:
                self._void("restarted" if sequence <= last[0] else "gap")
            self._take(sequence, payload)

    def _hold(self, sequence: int, payload: bytes) -> None:
        held = self._held
        assert held is not None
        held.append((sequence, payload))
        self._held_bytes += len(payload)
        while self._held_bytes > _MOST_HELD_BYTES:
            self._held_bytes -= len(held.popleft()[1])  # a gap of its own, later

    def _take(self, sequence: int, payload: bytes) -> None:
        self._last = (sequence, payload)
        if sequence > self._replayed_to:
            self._replayed_to = -1
        self._receiver.batch(sequence, payload)

    def _void(self, cause: str) -> None:
        self._last = None
        self._replayed_to = -1
        self._receiver.lost(cause)

    # What is asked for again.

    def _ask(self, last: tuple[int, bytes] | None) -> None:
        """For everything from the last batch on, or for all that is kept."""
        self._end_replay()
        if self._going_on is not None:
            self._going_on.cancel()
            self._going_on = None
        if self._held is None:
            self._held = deque()
            self._held_bytes = 0
        self._must_match = last
        dealer = self._dealer = self._open(zmq.DEALER, self._again)
        assert self._publisher.replay_endpoint is not None
        dealer.socket.connect(self._publisher.replay_endpoint)
        first = 0 if last is None else last[0]
        dealer.socket.send_multipart((b"", first.to_bytes(8, "big")), zmq.NOBLOCK)
        self._progress = False
        self._timeout = self._loop.call_later(_REPLAY_TIMEOUT_S, self._is_late)

    def _is_late(self) -> None:
        if self._progress:
            self._progress = False
            self._timeout = self._loop.call_later(_REPLAY_TIMEOUT_S, self._is_late)
        else:
            self._replay_over(False)

    def _again(self, frames: list[bytes]) -> None:
        """A message of the replay: with the topic (vLLM) or without (SGLang)."""
        self._progress = True
        if len(frames) not in (3, 4) or len(frames[-2]) != 8:
            self._replay_over(False)
            return
        sequence, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        if sequence == _END:
            self._replay_over(True)
            return
        must_match = self._must_match
        if must_match is not None:
            if (sequence, payload) == must_match:
                self._must_match = None
            else:
                self._void("gap" if sequence > must_match[0] else "restarted")
                self._ask(None)
            return
        last = self._last
        if last is not None and sequence != last[0] + 1:
            self._replay_over(False)
            return
        self._take(sequence, payload)
        self._replayed_to = sequence

    def _replay_over(self, ended_well: bool) -> None:
        """What is live goes on from here; what is missing now is not to be had."""
        if self._must_match is not None:
            # Not even the last batch is kept: another life of the publisher, which is younger.
            self._void("restarted" if ended_well else "gap")
            if ended_well:
                self._ask(None)
                return
        self._end_replay()
        self._go_on()

    def _go_on(self) -> None:
        """With the live batches that had to wait, a little at a time; further ones still queue up behind them."""
        self._going_on = None
        held = self._held
        assert held is not None
        end_s = perf_counter() + _TURN_S
        while held:
            if perf_counter() > end_s:
                self._going_on = self._loop.call_soon(self._go_on)
                return
            sequence, payload = held.popleft()
            last = self._last
            if last is not None and sequence != last[0] + 1:
                if sequence <= self._replayed_to or (sequence, payload) == last:
                    continue
                self._void("restarted" if sequence <= last[0] else "gap")
            self._take(sequence, payload)
        self._held = None

    def _end_replay(self) -> None:
        self._must_match = None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None


class _Socket:
    """A ZeroMQ socket on the event loop: looked at every few milliseconds while something comes, else not at all."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, socket: zmq.Socket[bytes], came: Callable[[list[bytes]], None]
    ) -> None:
        self.socket = socket
        self._loop = loop
        self._came = came
        self._descriptor = int(socket.get(zmq.FD))
        self._later: asyncio.TimerHandle | None = None
        self._look_soon()  # first, for the descriptor tells of changes only

    def close(self) -> None:
        """Look no more."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._descriptor)
        self.socket.close(0)

    def _readable(self) -> None:
        self._loop.remove_reader(self._descriptor)
        self._look_soon()

    def _look_soon(self) -> None:
        self._later = self._loop.call_later(_GATHER_S, self._look)

    def _look(self) -> None:
        self._later = None
        socket = self.socket
        try:
            end_s = perf_counter() + _TURN_S
            while perf_counter() < end_s:
                self._came(socket.recv_multipart(zmq.NOBLOCK))
                if socket.closed:
                    return
        except zmq.Again:
            self._loop.add_reader(self._descriptor, self._readable)
            if int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                self._readable()
        else:
            self._look_soon()
