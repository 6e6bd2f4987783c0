"""A trace through a pool of modelled engines, on a simulated clock."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from time import perf_counter

from benchmarks.routing.trace import BLOCK_TOKENS, Request
from benchmarks.routing_sim.engine import Engine, Job
from extproc.routing.blocks import chain, root
from extproc.routing.facts import RouteFacts
from extproc.routing.index import PrefixIndex
from extproc.routing.load import WorkerLoad
from extproc.routing.membership import Membership
from extproc.routing.pace import Pace
from extproc.routing.policies import Policy, PrefixUse
from extproc.routing.pool import Pool
from extproc.routing.prefixes import Prefixes
from extproc.routing.worker import ReportedLoad, Worker, WorkerState
from extproc.simulator.constants import PREFILL_TOKENS_PER_S
from extproc.simulator.speeds import spread_speeds
from extproc.token_ids import WIDTH, TokenIds

_SPREAD = 0.2
_SWEEP_EVERY = 8  # requests
_GENERATED_ID = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The engines, and what is known of them."""

    workers: int
    kv_tokens: int
    block_tokens: int = 16
    events: bool = True  # KV events arrive, at once
    seed: int = 5
    poll_s: float = 1.0  # time between two reports of an engine's load; 0: none
    kv_known: bool = True


@dataclass(slots=True)
class Outcome:
    """What became of a replay."""

    ttft_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    errors_s: list[float] = field(default_factory=list)  # seen - estimated
    reasons: dict[str, int] = field(default_factory=dict)
    busy_s: list[float] = field(default_factory=list)  # of each engine


class _TrueLoad(WorkerLoad):
    """Reads the engine."""

    __slots__ = ("_engine", "_pace")

    def __init__(self, engine: Engine, tokens_per_s: float) -> None:
        super().__init__()
        self._engine = engine
        self._pace = Pace(tokens_per_s, 0.03)

    @property
    def pace(self) -> Pace:
        return self._pace

    def backlog_tokens(self, now_s: float) -> float:
        return self._engine.tokens_before(now_s)


class _TruePrefixes(Prefixes):
    """Reads the engines' caches."""

    engines: dict[Worker, Engine]

    def look_up(self, facts: RouteFacts, candidates: Sequence[Worker]) -> None:
        hashes = facts.hashes
        assert hashes is not None
        facts.precise = {}
        for worker in candidates:
            blocks = self.engines[worker].will_hold(hashes)
            if blocks:
                facts.precise[worker] = blocks * self.block_tokens


class Replay:
    """One run."""

    def __init__(self, policy: Policy, fleet: Fleet, *, ideal: bool = False) -> None:
        self._fleet = fleet
        self._ideal = ideal
        self._now_s = 0.0
        self.outcome = Outcome()
        self.deciding_s = 0.0  # real time that decisions took, without hashing
        self._workers = [
            Worker(f"w{number}", f"10.0.{number >> 8}.{number & 255}:1") for number in range(fleet.workers)
        ]
        members = Membership(self._workers)
        for worker in self._workers:
            worker.state = WorkerState.READY
        self._pool = Pool("simulated", (), policy, 2, members, clock=lambda: self._now_s)
        self._pool.decided = self._decided
        self._pool.estimate_seen = lambda estimate_s, seen_s: self.outcome.errors_s.append(seen_s - estimate_s)
        self._index = PrefixIndex()
        use = policy.prefixes or PrefixUse()
        kind = _TruePrefixes if ideal else Prefixes
        prefixes = kind(self._index, fleet.block_tokens, use, fleet.kv_tokens if fleet.kv_known else 10**9)
        members.observe(prefixes)
        self._prefixes = prefixes
        if policy.prefixes is not None:
            self._pool.prefixes = prefixes
        self._engines: dict[Worker, Engine] = {}
        for worker, speed in zip(self._workers, spread_speeds(fleet.workers, _SPREAD, fleet.seed), strict=True):
            self._engines[worker] = self._engine(worker, PREFILL_TOKENS_PER_S * speed)
        if isinstance(prefixes, _TruePrefixes):
            prefixes.engines = self._engines
        self._queue: list[tuple[float, int, Engine]] = []
        self._order = 0

    def _engine(self, worker: Worker, tokens_per_s: float) -> Engine:
        fleet = self._fleet
        if not fleet.events or self._ideal:
            engine = Engine(
                tokens_per_s, fleet.kv_tokens, fleet.block_tokens, nominal_tokens_per_s=PREFILL_TOKENS_PER_S
            )
        else:
            slot = self._prefixes.slot(worker)
            assert slot is not None
            self._prefixes.with_events.add(worker)
            index = self._index
            engine = Engine(
                tokens_per_s,
                fleet.kv_tokens,
                fleet.block_tokens,
                stored=lambda blocks: index.stored(slot, [block for block in blocks if block > 0]),
                evicted=lambda blocks: index.removed(slot, [block for block in blocks if block > 0]),
                nominal_tokens_per_s=PREFILL_TOKENS_PER_S,
            )
        if self._ideal:
            worker.load = _TrueLoad(engine, tokens_per_s)
        return engine

    def run(self, requests: Sequence[Request], load: float) -> Outcome:
        """`load`: arrivals come so many times faster than in the trace."""
        outcome = self.outcome
        outcome.ttft_s = [0.0] * len(requests)
        poll_s = self._fleet.poll_s
        next_poll_s = poll_s if poll_s else float("inf")
        for number, request in enumerate(requests):
            at_s = request.at_s / load
            while next_poll_s <= at_s:
                self._until(next_poll_s)
                self._report(next_poll_s)
                next_poll_s += poll_s
            self._until(at_s)
            self._now_s = at_s
            self._arrive(number, request)
            if number % _SWEEP_EVERY == 0:
                self._index.sweep(0.001)
        self._until(float("inf"))
        outcome.busy_s = [engine.busy_s for engine in self._engines.values()]
        return outcome

    def _until(self, time_s: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= time_s:
            due_s, _, engine = heappop(queue)
            if engine.due_s == due_s:
                self._now_s = due_s
                engine.end()
                self._schedule(engine)

    def _schedule(self, engine: Engine) -> None:
        if engine.due_s is not None:
            self._order += 1
            heappush(self._queue, (engine.due_s, self._order, engine))

    def _report(self, now_s: float) -> None:
        for worker, engine in self._engines.items():
            cache = engine.cache
            worker.reported = ReportedLoad(
                now_s, len(engine.waiting), len(engine.prefilling) + engine.decoding, cache.held / cache.capacity
            )

    def _arrive(self, number: int, request: Request) -> None:
        at_s = self._now_s
        block_tokens = self._fleet.block_tokens
        ids = _ids(request)
        facts = RouteFacts(len(ids), ids)
        hashes = facts.hashes = chain(ids, _root(block_tokens), block_tokens)
        facts.block_tokens = block_tokens
        began_s = perf_counter()
        reservation = self._pool.reserve(facts)
        self.deciding_s += perf_counter() - began_s
        engine = self._engines[reservation.worker]
        outcome = self.outcome
        job: Job

        def first_token(now_s: float) -> None:
            self._now_s = now_s
            outcome.ttft_s[number] = now_s - at_s
            outcome.prompt_tokens += job.prompt_tokens
            outcome.cached_tokens += job.cached_tokens
            reservation.first_token(job.cached_tokens)

        def ended(now_s: float) -> None:
            self._now_s = now_s
            if reservation.generated is not None:
                reservation.generated.extend([_GENERATED_ID + number] * request.output_tokens)
            reservation.settle()

        job = Job(hashes, facts.prompt_tokens, request.output_tokens, first_token, ended)
        engine.submit(job, at_s)
        self._schedule(engine)

    def _decided(self, reason: str) -> None:
        self.outcome.reasons[reason] = self.outcome.reasons.get(reason, 0) + 1


@lru_cache(maxsize=8)
def _root(block_tokens: int) -> int:
    return root("", block_tokens)


def _ids(request: Request) -> TokenIds:
    return TokenIds(b"".join([_content(content)[: tokens * WIDTH] for content, tokens in request.pieces]))


@lru_cache(maxsize=200_000)
def _content(content: int) -> bytes:
    chance = random.Random(content)
    return TokenIds.from_packed(array("I", [chance.getrandbits(20) for _ in range(BLOCK_TOKENS)]).tobytes()).varints
