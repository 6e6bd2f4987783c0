"""A batch's steps on the event loop: one timer an engine, one wake-up a step, all tokens of a step sent in one go.

A step is due when the one before it was due, plus its duration: timers that are late, and what sending takes, shift
single tokens but never the pace. How late steps were is counted, so that a benchmark can say whether the machine kept
up with the model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from extproc.simulator.batching import Batch, Job, Pace


class Scheduler:
    """Runs jobs on the event loop that is running."""

    def __init__(self, pace: Pace, speed_up: float = 1.0) -> None:
        """`speed_up` is model time / wall time."""
        self.batch = Batch(pace)
        self.steps = 0
        self.late_s = 0.0  # summed over steps, wall time
        self.latest_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._speed_up = speed_up
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None  # of the step that is going on
        self._soon: asyncio.Handle | None = None
        self._ending = False

    @property
    def waiting(self) -> Sequence[Job]:
        """Jobs that have not started, the next one first."""
        return self.batch.waiting

    def submit(self, job: Job) -> None:
        """Queue a job. Where nothing takes time, it is answered within this call."""
        self.batch.submit(job)
        if self._timer is None and not self._ending:
            self._begin(time.monotonic())

    def remove(self, job: Job) -> None:
        """Forget a job that ended or was given up, wherever it is."""
        self.batch.remove(job)
        if self._ending or self._soon is not None:
            return
        # Not within a call that may itself be on the way through the batch.
        if self._timer is None:
            if self.batch.waiting:
                self._soon = self._loop.call_soon(self._begin_now)
        elif self.batch.needless:
            self._timer.cancel()
            self._timer = None
            self._soon = self._loop.call_soon(self._begin_now)

    def close(self) -> None:
        """Nothing runs, and no timer is left behind."""
        self.batch.clear()
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None

    def _begin_now(self) -> None:
        self._soon = None
        if self._timer is None:
            self._begin(time.monotonic())

    def _begin(self, at: float) -> None:
        """Begin a step, at a moment of the monotonic clock that may have passed."""
        duration_s = self.batch.begin()
        if duration_s is None:
            return
        self._due = due = at + duration_s / self._speed_up
        self._timer = self._loop.call_later(max(due - time.monotonic(), 0.0), self._end)

    def _end(self) -> None:
        self._timer = None
        due = self._due
        late_s = time.monotonic() - due
        self.steps += 1
        if late_s > 0:
            self.late_s += late_s
            self.latest_s = max(self.latest_s, late_s)
        self._ending = True
        try:
            self.batch.end()
        finally:
            self._ending = False
        if self._timer is None:
            self._begin(due)
