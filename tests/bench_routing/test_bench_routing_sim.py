"""The modelled engine keeps the simulator's rules, and a replay is a fair one."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from benchmarks.routing.trace import Request
from benchmarks.routing_sim.engine import Engine, Job
from benchmarks.routing_sim.fleets import many_times
from benchmarks.routing_sim.replay import Fleet, Replay
from extproc.routing.policies import LeastLoad, RoundRobin, Ttft
from extproc.simulator.batching import Batch, Pace
from extproc.simulator.constants import (
    DECODE_SEQUENCE_S,
    DECODE_STEP_S,
    MAX_RUNNING_SEQUENCES,
    PREFILL_CHUNK_TOKENS,
)

Traffic = list[tuple[float, int, int]]


def traffic(seed: int, count: int) -> Traffic:
    """(arrival, prompt tokens, output tokens), in order."""
    chance = random.Random(seed)
    at_s = 0.0
    rows = []
    for _ in range(count):
        at_s += chance.expovariate(3.0)
        rows.append((at_s, chance.randrange(10, 9000), chance.randrange(1, 60)))
    return rows


class _Job:
    """A job of the simulator's batch without a cache."""

    sequences = 1

    def __init__(self, tokens: int, output: int) -> None:
        self.prompt = range(tokens)
        self.left = output
        self.first_s: float | None = None
        self.last_s = 0.0
        self.now = [0.0]

    @property
    def idle(self) -> bool:
        return self.left == 0

    def fits(self) -> bool:
        return True

    def start(self) -> int:
        return len(self.prompt)

    def computed(self, tokens: int) -> None:
        pass

    def prefilled(self) -> None:
        pass

    def step(self) -> None:
        self.left -= 1
        if self.first_s is None:
            self.first_s = self.now[0]
        self.last_s = self.now[0]


def by_the_simulator(rows: Traffic) -> list[tuple[float, float]]:
    batch = Batch(
        Pace(
            prefill_tokens_per_s=8000.0,
            step_s=DECODE_STEP_S,
            sequence_s=DECODE_SEQUENCE_S,
            chunk_tokens=PREFILL_CHUNK_TOKENS,
            max_running=MAX_RUNNING_SEQUENCES,
            speed=0.9,
        )
    )
    now = [0.0]
    jobs = [_Job(tokens, output) for _, tokens, output in rows]
    coming = list(zip(rows, jobs, strict=True))
    running: set[_Job] = set()
    while coming or running:
        while coming and coming[0][0][0] <= now[0]:
            _, job = coming.pop(0)
            job.now = now
            running.add(job)
            batch.submit(job)
        duration_s = batch.begin()
        if duration_s is None:
            now[0] = coming[0][0][0]
            continue
        now[0] += duration_s
        batch.end()
        for job in [job for job in running if job.idle]:
            running.discard(job)
            batch.remove(job)
    return [(job.first_s or 0.0, job.last_s) for job in jobs]


def by_the_model(rows: Traffic) -> list[tuple[float, float]]:
    engine = Engine(7200.0, 10**9, 16, nominal_tokens_per_s=8000.0)
    times = [[0.0, 0.0] for _ in rows]
    events: list[tuple[float, int, int]] = []
    for number, (at_s, _, _) in enumerate(rows):
        heappush(events, (at_s, 0, number))

    def note(number: int, which: int, now_s: float) -> None:
        times[number][which] = now_s

    while events:
        at_s, kind, number = heappop(events)
        if kind == 0:
            _, tokens, output = rows[number]
            hashes = [(number + 1) * 100_000 + block for block in range((tokens - 1) // 16)]
            job = Job(
                hashes,
                tokens,
                output,
                lambda now_s, number=number: note(number, 0, now_s),  # type: ignore[misc]
                lambda now_s, number=number: note(number, 1, now_s),  # type: ignore[misc]
            )
            engine.submit(job, at_s)
        elif engine.due_s == at_s:
            engine.end()
        if engine.due_s is not None:
            heappush(events, (engine.due_s, 1, 0))
    return [(first, last) for first, last in times]


@pytest.mark.parametrize("seed", range(5))
def test_the_modelled_engine_answers_when_the_simulated_one_does(seed: int) -> None:
    rows = traffic(seed, 60)
    for ours, theirs in zip(by_the_model(rows), by_the_simulator(rows), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


def conversations(count: int, turns: int) -> list[Request]:
    rows = []
    for number in range(count):
        for turn in range(turns):
            pieces = tuple((number * 1000 + block, 512) for block in range(4 * turn + 4))
            rows.append(Request(number * 0.4 + turn * 15.0, pieces, 20))
    rows.sort(key=lambda row: row.at_s)
    return rows


def mean(replay: Replay, requests: list[Request]) -> tuple[float, float]:
    outcome = replay.run(requests, 1.0)
    return sum(outcome.ttft_s) / len(requests), outcome.cached_tokens / outcome.prompt_tokens


def test_on_conversations_caches_are_worth_their_price() -> None:
    requests = conversations(40, 6)
    fleet = Fleet(workers=4, kv_tokens=1_000_000, block_tokens=64)
    blind_s, blind_share = mean(Replay(LeastLoad(random.Random(1)), fleet), requests)
    ours_s, ours_share = mean(Replay(Ttft(rng=random.Random(1)), fleet), requests)
    ideal_s, ideal_share = mean(Replay(Ttft(rng=random.Random(1)), fleet, ideal=True), requests)
    assert ours_s < 0.6 * blind_s
    assert ours_share > 2 * blind_share
    assert ours_share > 0.9 * ideal_share
    assert ours_s < 1.3 * ideal_s  # which knows from the start how fast each worker is


def test_without_kv_events_the_guess_is_as_good_while_caches_have_room() -> None:
    requests = conversations(40, 6)
    with_events = Fleet(workers=4, kv_tokens=1_000_000, block_tokens=64)
    without = Fleet(workers=4, kv_tokens=1_000_000, block_tokens=64, events=False)
    _, precise = mean(Replay(Ttft(rng=random.Random(1)), with_events), requests)
    _, guessed = mean(Replay(Ttft(rng=random.Random(1)), without), requests)
    assert guessed == pytest.approx(precise, rel=0.05)


def test_every_request_is_answered_and_everything_is_given_back() -> None:
    requests = conversations(20, 4)
    replay = Replay(RoundRobin(), Fleet(workers=3, kv_tokens=20_000, block_tokens=64))
    outcome = replay.run(requests, 3.0)
    assert all(time_s > 0 for time_s in outcome.ttft_s)
    assert outcome.prompt_tokens == sum(request.input_tokens for request in requests)
    assert sum(outcome.reasons.values()) == len(requests)


def test_copies_of_the_trace_share_nothing_and_keep_their_order() -> None:
    requests = conversations(3, 3)
    copies = many_times(requests, 4)
    assert len(copies) == 4 * len(requests)
    assert [copy.at_s for copy in copies] == sorted(copy.at_s for copy in copies)
    contents = [{content for content, _ in copy.pieces} for copy in copies]
    first_blocks = {copy.pieces[0][0] for copy in copies}
    assert len(first_blocks) == 4 * 3
    assert sum(map(len, contents)) == 4 * sum(len(request.pieces) for request in requests)
