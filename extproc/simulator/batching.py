"""Continuous batching with chunked prefill, as vLLM's scheduler does it: what a step computes, how long it takes.

Pure: no clock, no I/O. `begin` plans a step and says how long it lasts, `end` applies it, and between the two the
caller lets that time pass: `scheduler` on an event loop, a discrete-event simulation on its own clock.

One step computes at most `chunk_tokens` tokens: one for every decoding sequence, then prompts in order of arrival, each
as much as is left. Its weights are read once, however little there is to compute, and computing overlaps with reading
(the roofline), hence

    step = max(step_s, prompt tokens / prefill_tokens_per_s) + sequence_s x decoding sequences

all divided by the worker's speed. A prompt's blocks exist at the end of the step that computed them, its first token
comes with the last of these steps, and its cached prefix is looked up when it leaves the queue. Requests wait while
the batch has `max_running` sequences or the KV cache has no room for the next prompt; nothing is preempted.

Where prefill or decode takes no time (0), it happens within the call: what tests and benchmarks of gateways need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Job(Protocol):
    """One request, as far as time goes."""

    sequences: int
    """How many sequences it decodes."""
    idle: bool
    """Nothing more comes of it: it is over, or stalls."""

    @property
    def prompt(self) -> Sequence[int]:
        """Its tokens."""
        ...

    def fits(self) -> bool:
        """The KV cache has room for its prompt now."""
        ...

    def start(self) -> int:
        """It leaves the queue. Returns the prompt tokens that must be computed, at least 1."""
        ...

    def computed(self, tokens: int) -> None:
        """So many more tokens of its prompt were computed."""
        ...

    def prefilled(self) -> None:
        """All of the prompt was computed."""
        ...

    def step(self) -> None:
        """A token for each of its sequences."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What a step costs, in seconds of model time."""

    prefill_tokens_per_s: float  # 0: prefill takes no time
    step_s: float  # 0: whole answers leave at once
    sequence_s: float
    chunk_tokens: int
    max_running: int
    speed: float = 1.0  # of this worker: every step takes 1 / speed of the time

    def duration_s(self, decoding: int, prompt_tokens: int) -> float:
        """Of a step with so many decoding sequences and prompt tokens."""
        compute_s = prompt_tokens / self.prefill_tokens_per_s if prompt_tokens else 0.0
        return (max(self.step_s, compute_s) + self.sequence_s * decoding) / self.speed


class Batch:
    """The requests of one engine. Jobs may come and go at any time, also within the calls that a step makes."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._waiting: deque[Job] = deque()
        self._prefilling: dict[Job, int] = {}  # prompt tokens left, in order of arrival
        self._decoding: dict[Job, None] = {}
        self._plan: list[tuple[Job, int]] = []  # prompt tokens of the step between `begin` and `end`
        self._step_decodes = False  # that step has decoding sequences
        self.busy_s = 0.0  # model time of all steps
        self.computed_tokens = 0  # of prompts

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
        return sum(job.sequences for job in self._prefilling) + sum(job.sequences for job in self._decoding)

    @property
    def prefill_tokens_left(self) -> int:
        """Prompt tokens of running jobs that are not computed yet."""
        return sum(self._prefilling.values())

    @property
    def needless(self) -> bool:
        """Everything that the planned step was for is gone."""
        if self._step_decodes and any(not job.idle for job in self._decoding):
            return False
        return not any(job in self._prefilling for job, _ in self._plan)

    def submit(self, job: Job) -> None:
        """Queue a job. Where prefill takes no time, its first token is sent within this call."""
        self._waiting.append(job)
        if not self._pace.prefill_tokens_per_s:
            self._admit_at_once()

    def remove(self, job: Job) -> None:
        """Forget a job that ended or was given up, wherever it is."""
        if self._prefilling.pop(job, None) is None and job in self._decoding:
            del self._decoding[job]
        elif job in self._waiting:
            self._waiting.remove(job)

    def clear(self) -> None:
        """Forget all jobs."""
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()
        self._plan = []

    def begin(self) -> float | None:
        """Plan a step. Returns its duration in seconds of model time; None where there is nothing to do."""
        pace = self._pace
        if not pace.prefill_tokens_per_s:
            self._admit_at_once()
        decoding = sum(job.sequences for job in self._decoding if not job.idle)
        budget = pace.chunk_tokens - decoding
        self._plan = plan = []
        for job, left in self._prefilling.items():
            if budget <= 0:
                break
            tokens = min(left, budget)
            budget -= tokens
            plan.append((job, tokens))
        while budget > 0 and self._admits():
            job = self._waiting.popleft()
            left = self._prefilling[job] = job.start()
            tokens = min(left, budget)
            budget -= tokens
            plan.append((job, tokens))
        if not plan and not decoding:
            return None
        self._step_decodes = decoding > 0
        duration_s = pace.duration_s(decoding, sum(tokens for _, tokens in plan))
        self.busy_s += duration_s
        return duration_s

    def end(self) -> None:
        """The planned step is over: tokens for those who decoded, and prompts that are further or done."""
        if self._step_decodes:
            # Those that finish prefill in this step get their first token below.
            for job in list(self._decoding):
                if not job.idle:
                    job.step()
        prefilling = self._prefilling
        for job, tokens in self._plan:
            left = prefilling.get(job)
            if left is None:
                continue
            self.computed_tokens += tokens
            job.computed(tokens)
            if left > tokens:
                prefilling[job] = left - tokens
            else:
                del prefilling[job]
                self._decode(job)
        self._plan = []

    def _admits(self) -> bool:
        """The next waiting job may start."""
        if not self._waiting:
            return False
        job = self._waiting[0]
        running = self.running_sequences
        return not running or (running + job.sequences <= self._pace.max_running and job.fits())

    def _admit_at_once(self) -> None:
        while self._admits():
            job = self._waiting.popleft()
            tokens = job.start()
            self.computed_tokens += tokens
            job.computed(tokens)
            self._decode(job)

    def _decode(self, job: Job) -> None:
        self._decoding[job] = None
        job.prefilled()
        job.step()
        if not self._pace.step_s:
            while not job.idle:
                job.step()
