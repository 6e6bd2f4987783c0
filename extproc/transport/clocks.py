"""When one connection has to be greeted, pinged, drained or dropped as time goes by. HTTP/2 is the connection's matter.

No clock runs per call, and none is touched per read: a read only sets a flag.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from typing import Protocol

from extproc.transport.limits import TransportLimits

_log = logging.getLogger(__name__)

_SECOND_LOOK_S = 0.5
"""A process that was stopped for a while finds its clocks due before it has read what came meanwhile."""

_AGE_SPREAD = 0.1  # connections made at the same moment must not all end at the same moment


class Timed(Protocol):
    """What clocks ask of a connection."""

    @property
    def opened_calls(self) -> int:
        """Calls so far."""
        ...

    @property
    def calls(self) -> int:
        """Calls that are open."""
        ...

    def ping(self) -> None:
        """Make the client say something."""
        ...

    def drain(self) -> None:
        """Take no new calls, close after the last."""
        ...

    def terminate(self) -> None:
        """Reset what is open and close."""
        ...

    def abort(self) -> None:
        """Cut the socket."""
        ...


class Clocks:
    """The clocks of one connection."""

    def __init__(self, connection: Timed, limits: TransportLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._limits = limits
        self._loop = loop
        self._pinged = False  # a ping went out at the last tick
        self._opened_before = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.heard = False  # something was received since the last tick
        self.greeted = False  # the client's SETTINGS are here

    def start(self) -> None:
        """At the connection's begin."""
        limits = self._limits
        self._set("alive", limits.handshake_timeout_s, self._first_tick)
        self._set("idle", limits.max_idle_s, self._when_idle)
        self._set("age", limits.max_age_s * random.uniform(1 - _AGE_SPREAD, 1 + _AGE_SPREAD), self._when_old)  # noqa: S311

    def cut_after(self, delay_s: float) -> None:
        """The last bytes are under way; nothing else is to be watched."""
        self.cancel()
        self._set("alive", delay_s, self._connection.abort)

    def cancel(self) -> None:
        """The connection is gone."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _set(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        if delay_s < math.inf:
            self._timers[name] = self._loop.call_later(delay_s, callback)

    def _first_tick(self) -> None:
        if self.greeted:
            self._tick()
        else:
            self._second_look(lambda: self.greeted, f"no HTTP/2 within {self._limits.handshake_timeout_s:g} s")

    def _tick(self) -> None:
        if self._pinged and not self.heard:
            self._second_look(lambda: self.heard, f"silent for {2 * self._limits.keepalive_s:g} s")
            return
        self._pinged = not self.heard
        self.heard = False
        self._set("alive", self._limits.keepalive_s, self._tick)
        if self._pinged:
            self._connection.ping()

    def _second_look(self, spoke: Callable[[], bool], complaint: str) -> None:
        def look() -> None:
            if spoke():
                self._tick()
            else:
                _log.info("connection dropped: %s", complaint)
                self._connection.abort()

        self._set("alive", _SECOND_LOOK_S, look)

    def _when_idle(self) -> None:
        connection = self._connection
        if connection.calls or connection.opened_calls != self._opened_before:
            self._opened_before = connection.opened_calls
            self._set("idle", self._limits.max_idle_s, self._when_idle)
        else:
            connection.drain()

    def _when_old(self) -> None:
        self._set("age", self._limits.max_age_grace_s, self._connection.terminate)
        self._connection.drain()
