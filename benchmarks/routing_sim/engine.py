"""A modelled engine: continuous batching, chunked prefill, an LRU cache of blocks, by the rules of `extproc.simulator`.

The same rules at a hundredth of the cost, since steps that only decode are taken together until something happens.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from extproc.simulator.constants import DECODE_SEQUENCE_S, DECODE_STEP_S, MAX_RUNNING_SEQUENCES, PREFILL_CHUNK_TOKENS


class Job:
    """One request on an engine."""

    __slots__ = (
        "block_tokens",
        "cached_tokens",
        "ended",
        "first_token",
        "hashes",
        "held",
        "left",
        "output_tokens",
        "prompt_tokens",
        "stored",
    )

    def __init__(
        self,
        hashes: Sequence[int],
        prompt_tokens: int,
        output_tokens: int,
        first_token: Callable[[float], None],
        ended: Callable[[float], None],
    ) -> None:
        """`hashes`: of the blocks that can match."""
        self.hashes = hashes
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.first_token = first_token
        self.ended = ended
        self.cached_tokens = 0
        self.left = 0  # prompt tokens to compute
        self.stored = 0  # of `hashes`
        self.held: list[int] = []


class Cache:
    """Blocks by hash, least recently released first to go."""

    def __init__(
        self, capacity: int, stored: Callable[[list[int]], None], evicted: Callable[[list[int]], None]
    ) -> None:
        self.capacity = capacity
        self.holders: dict[int, int] = {}
        self._released: OrderedDict[int, None] = OrderedDict()
        self._stored = stored
        self._evicted = evicted
        self._own = 0

    @property
    def held(self) -> int:
        """Blocks that running requests need."""
        return len(self.holders)

    def match(self, hashes: Sequence[int]) -> int:
        """How many of the first are there."""
        holders, released = self.holders, self._released
        for number, block in enumerate(hashes):
            if block not in holders and block not in released:
                return number
        return len(hashes)

    def hold(self, blocks: Sequence[int]) -> list[int]:
        """Hold blocks, new ones in the room of old ones. Returns those that found room."""
        holders, released = self.holders, self._released
        held, new, gone = [], [], []
        for block in blocks:
            count = holders.get(block)
            if count is not None:
                holders[block] = count + 1
            elif block in released:
                del released[block]
                holders[block] = 1
            else:
                if len(holders) + len(released) >= self.capacity:
                    if not released:
                        continue
                    gone.append(released.popitem(last=False)[0])
                holders[block] = 1
                new.append(block)
            held.append(block)
        if gone:
            self._evicted(gone)
        if new:
            self._stored(new)
        return held

    def hold_unique(self, count: int) -> list[int]:
        """Blocks that nobody else will ever have."""
        first = self._own + 1
        self._own += count
        return self.hold([-number for number in range(first, first + count)])

    def release(self, blocks: list[int]) -> None:
        """The tail goes before the head."""
        holders, released = self.holders, self._released
        for block in reversed(blocks):
            count = holders[block] - 1
            if count:
                holders[block] = count
            else:
                del holders[block]
                released[block] = None


@dataclass(slots=True)
class _Step:
    began_s: float
    each_s: float  # of one step
    count: int  # steps that only decode are taken together
    plan: list[tuple[Job, int]]


class Engine:
    """Runs jobs. The caller's clock calls `end` at `due_s`, after every call that changed it."""

    def __init__(
        self,
        prefill_tokens_per_s: float,
        kv_tokens: int,
        block_tokens: int,
        stored: Callable[[list[int]], None] = lambda blocks: None,
        evicted: Callable[[list[int]], None] = lambda blocks: None,
        *,
        nominal_tokens_per_s: float,
    ) -> None:
        """Everything is slower or faster by prefill_tokens_per_s / nominal_tokens_per_s."""
        self.speed = prefill_tokens_per_s / nominal_tokens_per_s
        self._nominal = nominal_tokens_per_s
        self.block_tokens = block_tokens
        self.cache = Cache(kv_tokens // block_tokens, stored, evicted)
        self.waiting: deque[Job] = deque()
        self.prefilling: deque[Job] = deque()
        self.decoding = 0
        self.steps = 0  # that decoded
        self.busy_s = 0.0
        self._ends: list[tuple[int, int, Job]] = []  # by the number of the decoding step that is a job's last
        self._order = 0
        self._step: _Step | None = None
        self.due_s: float | None = None

    def submit(self, job: Job, now_s: float) -> None:
        """A request comes."""
        self.waiting.append(job)
        step = self._step
        if step is None:
            self._begin(now_s)
        elif step.count > 1:
            # It is seen when the present step ends.
            step.count = min(step.count, int((now_s - step.began_s) / step.each_s) + 1)
            self.due_s = step.began_s + step.count * step.each_s

    def end(self) -> None:
        """The present step, or the present row of steps, is over."""
        step = self._step
        assert step is not None
        assert self.due_s is not None
        now_s = self.due_s
        self.busy_s += step.count * step.each_s
        self._step = None
        if self.decoding:
            self.steps += step.count
            ends = self._ends
            while ends and ends[0][0] <= self.steps:
                job = heappop(ends)[2]
                self.decoding -= 1
                self._finish(job, now_s)
        for job, tokens in step.plan:
            self._computed(job, tokens, now_s)
        self._begin(now_s)

    def tokens_before(self, now_s: float) -> float:
        """Prompt tokens that are computed before those of a request that comes now: the truth."""
        tokens = float(sum([job.left for job in self.prefilling]))
        step = self._step
        if step is not None and step.plan:
            share = min((now_s - step.began_s) / step.each_s, 1.0)
            tokens -= share * sum([tokens for _, tokens in step.plan])
        coming: set[int] = set()
        for job in self.prefilling:
            coming.update(job.hashes[job.stored :])
        for job in self.waiting:
            tokens += job.prompt_tokens - self.will_hold(job.hashes, coming) * self.block_tokens
            coming.update(job.hashes)
        return tokens

    def will_hold(self, hashes: Sequence[int], coming: set[int] | None = None) -> int:
        """Blocks of a prompt that will be there once all before it is computed: the truth, but for evictions."""
        if coming is None:
            coming = set()
            for job in (*self.prefilling, *self.waiting):
                coming.update(job.hashes)
        cache = self.cache
        at = cache.match(hashes)
        while coming and at < len(hashes) and (hashes[at] in coming or cache.match(hashes[at : at + 1])):
            at += 1
        return at

    def _begin(self, now_s: float) -> None:
        budget = PREFILL_CHUNK_TOKENS - self.decoding
        plan: list[tuple[Job, int]] = []
        for job in self.prefilling:
            if budget <= 0:
                break
            tokens = min(job.left, budget)
            budget -= tokens
            plan.append((job, tokens))
        while budget > 0 and self._admits():
            job = self.waiting.popleft()
            self._start(job)
            self.prefilling.append(job)
            tokens = min(job.left, budget)
            budget -= tokens
            plan.append((job, tokens))
        decoding = self.decoding
        if not plan and not decoding:
            self.due_s = None
            return
        compute_s = sum([tokens for _, tokens in plan]) / self._nominal
        each_s = (max(DECODE_STEP_S, compute_s) + DECODE_SEQUENCE_S * decoding) / self.speed
        count = 1 if plan or self.waiting else max(self._ends[0][0] - self.steps, 1)
        self._step = _Step(now_s, each_s, count, plan)
        self.due_s = now_s + count * each_s

    def _admits(self) -> bool:
        if not self.waiting:
            return False
        running = len(self.prefilling) + self.decoding
        if not running:
            return True
        needed = -(-self.waiting[0].prompt_tokens // self.block_tokens)
        return running < MAX_RUNNING_SEQUENCES and self.cache.held + needed <= self.cache.capacity

    def _start(self, job: Job) -> None:
        cached = self.cache.match(job.hashes)
        job.held = self.cache.hold(job.hashes[:cached])
        job.stored = cached
        job.cached_tokens = cached * self.block_tokens
        job.left = job.prompt_tokens - job.cached_tokens

    def _computed(self, job: Job, tokens: int, now_s: float) -> None:
        job.left -= tokens
        done = (job.prompt_tokens - job.left) // self.block_tokens
        if done > job.stored:
            job.held += self.cache.hold(job.hashes[job.stored : done])
            job.stored = done
        if not job.left:
            self.prefilling.remove(job)
            job.first_token(now_s)
            if job.output_tokens > 1:
                self.decoding += 1
                self._order += 1
                heappush(self._ends, (self.steps + job.output_tokens - 1, self._order, job))
            else:
                self._finish(job, now_s)

    def _finish(self, job: Job, now_s: float) -> None:
        more = (job.prompt_tokens + job.output_tokens - 1) // self.block_tokens - len(job.hashes)
        if more > 0:
            job.held += self.cache.hold_unique(more)
        self.cache.release(job.held)
        job.ended(now_s)
