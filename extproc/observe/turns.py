"""The longest turn of the event loop: how late a timer comes that should come every 20 ms.

Costs 50 wake-ups a second and nothing per message. A turn that began before the timer was due and ended after it shows
only the part after it, so a single one is seen in part or, if shorter than the period, perhaps not at all; what happens
again and again is seen whole. Timers of the loop are good to a millisecond.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

_PERIOD_S = 0.02
_WINDOW_S = 60.0


class LoopTurns:
    """Watches the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0
        self._window_s = 0.0
        self._now_longest_s = 0.0
        self._before_longest_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longest in the last one to two minutes: several readers may ask, and none resets it for the others."""
        return max(self._now_longest_s, self._before_longest_s)

    def start(self) -> None:
        """Begin to watch."""
        self._last_s = self._window_s = perf_counter()
        self._timer = self._loop.call_later(_PERIOD_S, self._tick)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now_s = perf_counter()
        late_s = now_s - self._last_s - _PERIOD_S
        if late_s > self._now_longest_s:
            self._now_longest_s = late_s
        if now_s - self._window_s > _WINDOW_S:
            self._before_longest_s = self._now_longest_s
            self._now_longest_s = 0.0
            self._window_s = now_s
        self._last_s = now_s
        self._timer = self._loop.call_later(_PERIOD_S, self._tick)
