"""Connections to ZeroMQ sockets, as a client without security: enough of ZMTP 3.0 to subscribe and to ask.

The library would do it with a thread of its own and sockets that the event loop cannot wait for: 5,000 KV events a
second took 13 to 15 % of a core with it, decoding and index included, and take 9 % so. A message is a list of frames.
Source: RFC 23/ZMTP, RFC 29/PUBSUB.

    greeting   64 bytes: signature, version, mechanism
    frame      flags (1: more follow, 2: the length has eight bytes, 4: a command), length, body
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol, cast

from extproc.transport.streaming_client import GATHER_S, keep_alive

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
_MORE, _LONG, _COMMAND = 1, 2, 4
_MOST_FRAMES = 16
_TURN_S = 0.001  # what one turn of the event loop may be kept busy, give or take one message
_HANDSHAKE_S = 5.0


class ZmtpError(Exception):
    """The peer speaks something else, or sends too much."""


class Receiver(Protocol):
    """Who gets the messages. Called in the event loop; must not raise."""

    def connected(self) -> None:
        """The handshake is over."""
        ...

    def message(self, frames: list[bytes]) -> None:
        """One message, in order."""
        ...

    def disconnected(self, reason: str) -> None:
        """The last thing that is heard."""
        ...


class Messages:
    """Cuts what comes after the greeting into messages, without I/O."""

    __slots__ = ("_data", "_frames", "_limit_bytes", "_size", "ready")

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: of one message."""
        self._limit_bytes = limit_bytes
        self._data = b""  # an incomplete frame
        self._frames: list[bytes] = []  # of an incomplete message
        self._size = 0  # of those
        self.ready = False
        """The peer has said what kind of socket it is."""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """The messages completed by these bytes. Raises ZmtpError. Hot: 2 us for three frames."""
        if self._data:
            data = self._data + data
        messages: list[list[bytes]] = []
        frames = self._frames
        at, size = 0, len(data)
        while size - at >= 2:
            flags = data[at]
            if flags & _LONG:
                if size - at < 9:
                    break
                length = int.from_bytes(data[at + 1 : at + 9], "big")
                begin = at + 9
            else:
                length = data[at + 1]
                begin = at + 2
            if length + self._size > self._limit_bytes or len(frames) > _MOST_FRAMES or flags > 6:
                raise ZmtpError(f"a message of {length + self._size} bytes and {len(frames)} frames is over the limits")
            end = begin + length
            if end > size:
                break
            at = end
            if flags & _COMMAND:
                self._command(data[begin:end])
                continue
            frames.append(data[begin:end])
            if flags & _MORE:
                self._size += length
            else:
                messages.append(frames)
                frames = []
                self._size = 0
        self._frames = frames
        self._data = data[at:]
        return messages

    def _command(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        if name == b"READY":
            self.ready = True
        elif name == b"ERROR":
            raise ZmtpError(f"the peer refuses: {body[7:263].decode('latin-1')}")


class ZmtpConnection(asyncio.Protocol):
    """Made by `open_zmtp`."""

    def __init__(self, kind: str, first: Sequence[bytes], receiver: Receiver, max_message_bytes: int) -> None:
        self._hello = _ready(kind)
        self._first = _frames(first)
        self._receiver = receiver
        self._messages = Messages(max_message_bytes)
        self._pending: deque[list[bytes]] = deque()
        self._greeting = b""
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._connected = False
        self._timer: asyncio.Handle | None = None  # reading is paused until it is due

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport.get_extra_info("socket"))
        self._transport.write(_GREETING)
        self._impatience = self._loop.call_later(_HANDSHAKE_S, self._end, "no handshake")

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            if self._greeting is not None and len(self._greeting) < len(_GREETING):
                data = self._greet(data)
            if data:
                self._pending += self._messages.feed(data)
        except ZmtpError as error:
            self._end(str(error))
            return
        if not self._connected:
            if not self._messages.ready:
                return
            self._connected = True
            self._impatience.cancel()
            self._transport.write(self._first)
            self._receiver.connected()
        if self._pending and self._timer is None:
            self._transport.pause_reading()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc or "the connection ended"))

    def close(self) -> None:
        """End; the receiver hears nothing more."""
        self._over = True
        self._stop()

    def _greet(self, data: bytes) -> bytes:
        """Returns what is behind the greeting."""
        missing = len(_GREETING) - len(self._greeting)
        self._greeting += data[:missing]
        greeting = self._greeting
        if greeting[0] != 0xFF or (len(greeting) > 10 and greeting[10] < 3):
            raise ZmtpError("no ZeroMQ socket of version 4 or newer")
        if len(greeting) < len(_GREETING):
            return b""
        if greeting[12:32].rstrip(b"\0") != b"NULL":
            raise ZmtpError("the socket wants credentials")
        self._transport.write(self._hello)
        return data[missing:]

    def _go_on(self) -> None:
        """Hand on what came, a millisecond's worth at a time, and then leave the socket alone for a moment."""
        pending = self._pending
        end_s = perf_counter() + _TURN_S
        message = self._receiver.message
        while pending:
            if perf_counter() > end_s:
                self._timer = self._loop.call_soon(self._go_on)
                return
            message(pending.popleft())
            if self._over:
                return
        self._timer = self._loop.call_later(GATHER_S, self._read_again)

    def _read_again(self) -> None:
        self._timer = None
        self._transport.resume_reading()

    def _end(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._stop()
            self._receiver.disconnected(reason)

    def _stop(self) -> None:
        self._impatience.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._pending.clear()
        self._transport.abort()


async def open_zmtp(
    host: str,
    port: int,
    kind: str,
    first: Sequence[bytes],
    receiver: Receiver,
    *,
    max_message_bytes: int,
    timeout_s: float,
) -> ZmtpConnection:
    """A socket of a kind such as `SUB`, whose first message is sent after the handshake.

    Raises OSError and TimeoutError where nobody listens.
    """
    async with asyncio.timeout(timeout_s):
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ZmtpConnection(kind, first, receiver, max_message_bytes), host, port
        )
    return connection


def _ready(kind: str) -> bytes:
    name, value = b"Socket-Type", kind.encode()
    body = b"\x05READY" + bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
    return bytes([_COMMAND, len(body)]) + body


def _frames(message: Sequence[bytes]) -> bytes:
    last = len(message) - 1
    parts = []
    for number, body in enumerate(message):
        more = _MORE if number < last else 0
        long = len(body) > 255
        parts.append(bytes([more | (_LONG if long else 0)]) + len(body).to_bytes(8 if long else 1, "big") + body)
    return b"".join(parts)
