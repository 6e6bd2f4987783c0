"""A service that does as the test says and records what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc.aio

from extproc.transport.service import Call, Service
from extproc.transport.serving import Server

Start = Callable[..., Awaitable[Server]]
Connect = Callable[..., grpc.aio.Channel]

ECHO = "/test.Probe/Echo"
HOLD = "/test.Probe/Hold"
END = "/test.Probe/End"
FLOOD = "/test.Probe/Flood"
FAIL = "/test.Probe/Fail"
FAIL_AT_OPEN = "/test.Probe/FailAtOpen"
FAIL_AT_CLOSE = "/test.Probe/FailAtClose"

PATIENCE_S = 20.0
FLOOD_MESSAGE = b"f" * 65_536


class ProbeCall:
    """Records one call."""

    def __init__(self, call: Call, probe: Probe) -> None:
        self.call = call
        self.probe = probe
        self.received: list[bytes] = []
        self.half_closes = 0
        self.closes = 0

    def message(self, data: bytes) -> None:
        assert self.closes == 0
        self.received.append(data)
        self.probe.changed.set()
        self.act(data)

    def act(self, data: bytes) -> None:
        """What to do on a message."""

    def half_close(self) -> None:
        assert self.closes == 0
        self.half_closes += 1
        self.probe.changed.set()

    def closed(self) -> None:
        self.closes += 1
        self.probe.changed.set()


class Echo(ProbeCall):
    """Sends every message back and ends when the client does."""

    def act(self, data: bytes) -> None:
        self.call.send(data)

    def half_close(self) -> None:
        super().half_close()
        self.call.finish()


class End(ProbeCall):
    """Ends with the status of the message: a code, a space, details."""

    def act(self, data: bytes) -> None:
        code, _, details = data.decode().partition(" ")
        self.call.finish(int(code), details)
        self.call.send(b"after the end")
        self.call.finish(0, "again")


class Flood(ProbeCall):
    """Sends as many messages of 64 KiB at once as the message says."""

    def act(self, data: bytes) -> None:
        for _ in range(int(data)):
            self.call.send(FLOOD_MESSAGE)


class Fail(ProbeCall):
    """Raises on a message."""

    def act(self, data: bytes) -> None:
        raise RuntimeError("a secret of the handler")


class FailAtClose(Echo):
    """Raises when the call is over."""

    def closed(self) -> None:
        super().closed()
        raise RuntimeError("a secret of the handler")


class Probe:
    """All calls that were opened, in order."""

    def __init__(self) -> None:
        self.calls: list[ProbeCall] = []
        self.changed = asyncio.Event()

    def service(self) -> Service:
        def opens(kind: Callable[[Call, Probe], ProbeCall]) -> Callable[[Call], ProbeCall]:
            def _open(call: Call) -> ProbeCall:
                handler = kind(call, self)
                self.calls.append(handler)
                self.changed.set()
                return handler

            return _open

        def fail_at_open(call: Call) -> ProbeCall:
            raise RuntimeError("a secret of the handler")

        return {
            ECHO: opens(Echo),
            HOLD: opens(ProbeCall),
            END: opens(End),
            FLOOD: opens(Flood),
            FAIL: opens(Fail),
            FAIL_AT_CLOSE: opens(FailAtClose),
            FAIL_AT_OPEN: fail_at_open,
        }

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was heard makes the condition true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    @property
    def open_calls(self) -> int:
        return sum(not handler.closes for handler in self.calls)

    async def until_all_closed(self, count: int) -> None:
        """Wait until `count` calls were opened and are over, and check that each heard it once."""
        await self.until(lambda: len(self.calls) == count and not self.open_calls)
        assert [handler.closes for handler in self.calls] == [1] * count
