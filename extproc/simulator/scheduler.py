"""When work happens: prompts one after the other, then decode steps of all running sequences together.

The engine gives it jobs and asks it for its queue; nothing else knows about time, so another model of time (chunked
prefill within continuous batching) replaces this file alone. A job's first token comes with the end of its prefill.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol


class Job(Protocol):
    """One request, as far as time goes."""

    prompt: list[int]
    sequences: int
    """How many sequences it decodes."""
    idle: bool
    """Nothing more comes of it: it is over, or stalls."""

    def start(self) -> int:
        """It leaves the queue. Returns the prompt tokens that must be computed."""
        ...

    def prefilled(self) -> None:
        """The prompt was computed."""
        ...

    def step(self) -> None:
        """One decode step: a token for each of its sequences."""
        ...


class Scheduler:
    """Runs jobs on the event loop that is running."""

    def __init__(self, prefill_tokens_per_s: float, decode_step_s: float, max_running: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._decode_step_s = decode_step_s
        self._max_running = max_running
        self._waiting: deque[Job] = deque()
        self._prefilling: Job | None = None
        self._prefill_timer: asyncio.TimerHandle | None = None
        self._running: dict[Job, None] = {}
        self._step_timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> Sequence[Job]:
        """Jobs that have not started, the next one first."""
        return self._waiting

    @property
    def waiting_sequences(self) -> int:
        """Sequences of waiting jobs."""
        return sum(job.sequences for job in self._waiting)

    @property
    def running_sequences(self) -> int:
        """Sequences in prefill or decode."""
        prefilling = self._prefilling
        running = sum(job.sequences for job in self._running)
        return running + (prefilling.sequences if prefilling is not None else 0)

    def submit(self, job: Job) -> None:
        """Queue a job. Where nothing takes time, it is answered within this call."""
        self._waiting.append(job)
        self._admit()

    def remove(self, job: Job) -> None:
        """Forget a job that ended or was given up, wherever it is."""
        if job is self._prefilling:
            self._prefilling = None
            assert self._prefill_timer is not None
            self._prefill_timer.cancel()
        elif job in self._running:
            del self._running[job]
        else:
            if job in self._waiting:
                self._waiting.remove(job)
            return
        # Room for the next one, but not within a call that may itself be on the way through the queue.
        if self._waiting:
            self._loop.call_soon(self._admit)

    def close(self) -> None:
        """No timer is left behind."""
        self._waiting.clear()
        self._running.clear()
        for timer in (self._prefill_timer, self._step_timer):
            if timer is not None:
                timer.cancel()

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and self._prefilling is None:
            job = waiting[0]
            running = self.running_sequences
            if running and running + job.sequences > self._max_running:
                return
            waiting.popleft()
            uncached = job.start()
            if self._prefill_tokens_per_s:
                self._prefilling = job
                delay_s = uncached / self._prefill_tokens_per_s
                self._prefill_timer = self._loop.call_later(delay_s, self._end_prefill, job)
            else:
                self._decode(job)

    def _end_prefill(self, job: Job) -> None:
        self._prefilling = None
        self._decode(job)
        self._admit()

    def _decode(self, job: Job) -> None:
        self._running[job] = None
        job.prefilled()
        job.step()
        if not self._decode_step_s:
            while not job.idle:
                job.step()
        if self._running and self._decode_step_s and self._step_timer is None:
            self._step_timer = self._loop.call_later(self._decode_step_s, self._step)

    def _step(self) -> None:
        self._step_timer = None
        started = self._loop.time()
        for job in list(self._running):
            if not job.idle:
                job.step()
        if self._running:
            # Due one step after the last one was: what sending took is part of the step.
            self._step_timer = self._loop.call_at(started + self._decode_step_s, self._step)
        self._admit()
