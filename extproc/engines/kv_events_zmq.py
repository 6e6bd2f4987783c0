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
import random
from collections import deque
from time import perf_counter
from typing import Protocol

from msgspec import Struct

from extproc.transport.zmtp import ZmtpConnection, open_zmtp

MAX_BATCH_BYTES = 4 << 20
"""Of one message; who sends more is left."""

_MOST_HELD_BYTES = 64 << 20  # live batches that wait for a replay
_TURN_S = 0.001  # what one turn of the event loop may be kept busy, give or take one message
_CONNECT_S = 5.0
_REPLAY_TIMEOUT_S = 5.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 15.0
_END = (1 << 64) - 1


class Publisher(Struct, frozen=True):
    """Where an engine's rank publishes."""

    host: str
    port: int
    replay_port: int | None = None
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
    """Runs from its making to `close`, connecting again as often as it must. The receiver of its live connection."""

    def __init__(self, publisher: Publisher, receiver: Receiver) -> None:
        self._publisher = publisher
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._last: tuple[int, bytes] | None = None  # the batch that was handed on last
        self._replayed_to = -1  # live batches up to here came with a replay already
        self._held: deque[tuple[int, bytes]] | None = None  # live batches, while a replay runs
        self._held_bytes = 0
        self._going_on: asyncio.Handle | None = None  # with what was held
        self._replay: _Replay | None = None
        self._live: ZmtpConnection | None = None
        self._ended = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """End; the receiver hears nothing more."""
        self._end_replay()
        if self._going_on is not None:
            self._going_on.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        publisher = self._publisher
        subscribe = [b"\x01" + publisher.topic.encode()]
        delay_s = _FIRST_DELAY_S
        while True:
            self._ended.clear()
            try:
                self._live = await open_zmtp(
                    publisher.host,
                    publisher.port,
                    "SUB",
                    subscribe,
                    self,
                    max_message_bytes=MAX_BATCH_BYTES,
                    timeout_s=_CONNECT_S,
                )
                await self._ended.wait()
                delay_s = _FIRST_DELAY_S
            except (OSError, TimeoutError):
                delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
            finally:
                if self._live is not None:
                    self._live.close()
                    self._live = None
            await asyncio.sleep(delay_s * (0.5 + random.random()))  # noqa: S311

    # What is live.

    def connected(self) -> None:
        self._receiver.connected(True)
        if self._publisher.replay_port is not None:
            self._ask(self._last)

    def disconnected(self, reason: str) -> None:
        self._receiver.connected(False)
        if self._publisher.replay_port is None and self._last is not None:
            self._void("ended")
        self._ended.set()

    def message(self, frames: list[bytes]) -> None:
        """One batch. Hot."""
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
        if self._publisher.replay_port is not None:
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
        self._replay = _Replay(self, self._publisher, last)

    def replayed(self, sequence: int, payload: bytes) -> None:
        """A batch that comes again."""
        last = self._last
        if last is not None and sequence != last[0] + 1:
            self.replay_over()
            return
        self._take(sequence, payload)
        self._replayed_to = sequence

    def replay_is_another(self, cause: str) -> None:
        """It does not begin with the last batch: what is known is of another life of the publisher, or too old."""
        self._void(cause)
        self._ask(None)

    def replay_over(self, cause: str = "") -> None:
        """What is live goes on from here; what is missing now is not to be had. `cause`: all before is void."""
        if cause:
            self._void(cause)
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
        if self._replay is not None:
            self._replay.close()
            self._replay = None


class _Replay:
    """One question to a publisher's replay socket, and its answers. The receiver of that connection."""

    def __init__(self, owner: ZmqSubscription, publisher: Publisher, last: tuple[int, bytes] | None) -> None:
        """`last`: the batch with which the answers must begin."""
        self._owner = owner
        self._must_match = last
        self._connection: ZmtpConnection | None = None
        self._progress = False
        self._over = False
        self._timeout = asyncio.get_running_loop().call_later(_REPLAY_TIMEOUT_S, self._is_late)
        first = 0 if last is None else last[0]
        self._task = asyncio.ensure_future(self._open(publisher, first))

    def close(self) -> None:
        """The owner hears nothing more."""
        self._over = True
        self._timeout.cancel()
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _open(self, publisher: Publisher, first: int) -> None:
        assert publisher.replay_port is not None
        try:
            self._connection = await open_zmtp(
                publisher.host,
                publisher.replay_port,
                "DEALER",
                [b"", first.to_bytes(8, "big")],
                self,
                max_message_bytes=MAX_BATCH_BYTES,
                timeout_s=_CONNECT_S,
            )
        except (OSError, TimeoutError):
            self._fails()

    def connected(self) -> None:
        pass  # the question is sent

    def disconnected(self, reason: str) -> None:
        self._fails()

    def message(self, frames: list[bytes]) -> None:
        """With the topic (vLLM) or without (SGLang)."""
        if self._over:
            return
        self._progress = True
        if len(frames) not in (3, 4) or len(frames[-2]) != 8:
            self._fails()
            return
        sequence, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        must_match = self._must_match
        if must_match is None:
            if sequence == _END:
                self._owner.replay_over()
            else:
                self._owner.replayed(sequence, payload)
        elif (sequence, payload) == must_match:
            self._must_match = None
        else:
            # Not even the last batch is kept: the publisher is another one, or it was long ago.
            later = _END > sequence > must_match[0]
            self._owner.replay_is_another("gap" if later else "restarted")

    def _is_late(self) -> None:
        if self._progress:
            self._progress = False
            self._timeout = asyncio.get_running_loop().call_later(_REPLAY_TIMEOUT_S, self._is_late)
        else:
            self._fails()

    def _fails(self) -> None:
        if not self._over:
            self._owner.replay_over("" if self._must_match is None else "gap")
