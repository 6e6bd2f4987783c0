"""A circuit breaker: keeps requests from a worker that fails them, and finds out with one request when it is back.

    CLOSED     requests go; so many failures in a row open it
    OPEN       none goes, for a time that doubles with each trial that fails
    HALF_OPEN  one may go, as a trial
    TRIAL      it is under way; its success closes the breaker, its failure opens it, anything else brings HALF_OPEN

Failures are connections that fail, answers of 5xx, and streams that end without their status: never what the client
did, and never a worker that says it is full. Two cases cannot be told apart from others here: a worker after
which Envoy tried another counts as failed, whatever the reason; a stream that is cut off in the middle looks like a
client that left, and does not count.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol


class BreakerState(Enum):
    """See the module's table."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    TRIAL = "trial"


class Timer(Protocol):
    """What a clock gives for a call to come."""

    def cancel(self) -> None:
        """Do not call."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after some seconds: an event loop's `call_later`, or a simulation's."""

_LONGEST_FACTOR = 8


class Breaker:
    """Of one worker."""

    __slots__ = (
        "_after",
        "_call_later",
        "_changed",
        "_closed",
        "_factor",
        "_failures",
        "_open_s",
        "_timer",
        "allows",
        "opened",
        "state",
    )

    def __init__(
        self, failures: int, open_s: float, call_later: CallLater, changed: Callable[[], None] = lambda: None
    ) -> None:
        """Opens after so many `failures` in a row, at first for `open_s`. `changed` is called when `allows` has."""
        self._after = failures
        self._open_s = open_s
        self._call_later = call_later
        self._changed = changed
        self._closed = False
        self._failures = 0
        self._factor = 1
        self._timer: Timer | None = None
        self.state = BreakerState.CLOSED
        self.allows = True
        """Whether a request may go now."""
        self.opened = 0
        """How often it has opened."""

    def begins(self) -> bool:
        """A request goes. True if it is the trial: then one of the three below must be told of it."""
        if self.state is not BreakerState.HALF_OPEN:
            return False
        self._become(BreakerState.TRIAL, allows=False)
        return True

    def succeeded(self, *, trial: bool = False) -> None:
        """A request's answer came, or its end was in order."""
        self._failures = 0
        # Requests from before it opened say nothing about now.
        if trial and self.state is BreakerState.TRIAL:
            self._factor = 1
            self._become(BreakerState.CLOSED, allows=True)

    def failed(self, *, trial: bool = False) -> None:
        """A request failed, and it was the worker's fault."""
        if self.state is BreakerState.CLOSED:
            self._failures += 1
            if self._failures >= self._after:
                self._open()
        elif trial and self.state is BreakerState.TRIAL:
            self._factor = min(2 * self._factor, _LONGEST_FACTOR)
            self._open()

    def unknown(self) -> None:
        """The trial ended and says nothing: its client left, or another worker served it."""
        if self.state is BreakerState.TRIAL:
            self._become(BreakerState.HALF_OPEN, allows=True)

    def close(self) -> None:
        """The worker is gone: no timer stays, and requests that still run there change nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _open(self) -> None:
        self._failures = 0
        if self._closed:
            return
        self.opened += 1
        self._timer = self._call_later(self._open_s * self._factor, self._half_open)
        self._become(BreakerState.OPEN, allows=False)

    def _half_open(self) -> None:
        self._timer = None
        self._become(BreakerState.HALF_OPEN, allows=True)

    def _become(self, state: BreakerState, *, allows: bool) -> None:
        self.state = state
        if allows is not self.allows:
            self.allows = allows
            self._changed()
