"""How fast a worker computes prompts, measured from when its first tokens come."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Pace", "PaceMeter"]

_FADE = 0.97  # of what older samples weigh, at each new one: 33 count
_ENOUGH = 6.0  # samples, weighed, until a worker's own pace is believed
_PULL = 4e6  # square tokens: how far samples' lengths must be apart before they say more than the expected slope
_FORGOTTEN_AFTER_S = 60.0  # without a sample: a worker that hung once is tried again
_LATEST = 4.0  # times of what was expected: a later first token had other reasons than its prompt


class Pace(Struct, frozen=True):
    """A prompt of n uncached tokens takes `base_s + n / tokens_per_s`."""

    tokens_per_s: float
    base_s: float


class PaceMeter:
    """A straight line through (uncached tokens, seconds) of a worker's latest prompts, older ones fading.

    A sample is the time from a prompt's first moment at the head of its worker's queue to its first token. Where the
    queue was empty that is all its time to first token.
    """

    __slots__ = ("_count", "_last_s", "_t", "_x", "_xt", "_xx", "pace")

    def __init__(self) -> None:
        self._count = self._x = self._t = self._xx = self._xt = self._last_s = 0.0
        self.pace: Pace | None = None
        """None: too little seen."""

    def add(self, tokens: int, took_s: float, expected: Pace, now_s: float) -> None:
        """`expected` is what was believed of this worker. Prompts of all one length say nothing of its slope."""
        self._last_s = now_s
        slope = 1.0 / expected.tokens_per_s
        took_s = min(took_s, _LATEST * (expected.base_s + tokens * slope) + 0.05)
        count = self._count = self._count * _FADE + 1.0
        x = self._x = self._x * _FADE + tokens
        t = self._t = self._t * _FADE + took_s
        xx = self._xx = self._xx * _FADE + tokens * tokens
        xt = self._xt = self._xt * _FADE + tokens * took_s
        spread = xx - x * x / count
        if count < _ENOUGH or spread < _PULL:
            return
        slope = (xt - x * t / count + _PULL * slope) / (spread + _PULL)
        slope = min(max(slope, 1e-7), 1.0)
        self.pace = Pace(1.0 / slope, max((t - slope * x) / count, 0.0))

    def forget_old(self, now_s: float) -> None:
        """A worker that seems slow gets few prompts, and might seem so for ever: after a while it is unknown again."""
        if self._count and now_s - self._last_s > _FORGOTTEN_AFTER_S:
            self._count = self._x = self._t = self._xx = self._xt = 0.0
            self.pace = None
