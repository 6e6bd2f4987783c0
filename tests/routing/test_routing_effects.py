"""A reservation's load and blocks: on one worker at a time, given back exactly once, in whatever order things come."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from routing_pools import Bench, prompt

from extproc.routing.policies import Ttft
from extproc.routing.worker import Worker

_EVENTS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(
            ["first", "settle", "settle", "serve0", "serve1", "serve2", "failed", "succeeded", "token", "wait"]
        ),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(_EVENTS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_whatever_happens_all_load_is_given_back_exactly_once(
    events: list[tuple[int, str]], streams: list[bool]
) -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=3)
    reservations = [
        bench.pool.reserve(bench.facts(prompt(number % 3, 50 * number + 20), streams=streams[number]))
        for number in range(6)
    ]
    for number, event in events:
        reservation = reservations[number]
        match event:
            case "first":
                reservation.first_token(16)
            case "settle":
                reservation.settle()
            case "failed":
                reservation.failed()
            case "succeeded":
                reservation.succeeded()
            case "token":
                assert reservation.generated is not None
                reservation.generated.append(1)
            case "wait":
                bench.now_s += 0.05
                for worker in bench.workers:
                    assert worker.load.backlog_tokens(bench.now_s) >= 0
            case _:
                reservation.served_by(f"10.0.0.{event[-1]}:1")
        assert sum(worker.running for worker in bench.workers) <= 6
    for reservation in reservations:
        reservation.settle()
        reservation.settle()
    assert [figures(worker, bench.now_s) for worker in bench.workers] == [(0, 0, 0, 0, 0.0)] * 3


def figures(worker: Worker, now_s: float) -> tuple[float, ...]:
    load = worker.load
    return worker.running, worker.waiting_tokens, load.queued_tokens, load.decoding, load.backlog_tokens(now_s)


def test_blocks_are_thought_to_be_there_from_the_choice_on() -> None:
    bench = Bench(Ttft(rng=random.Random(1)))
    ids = prompt(1, 1000)
    reservation = bench.pool.reserve(bench.facts(ids))
    assert bench.guess(reservation.worker, ids) == 992


def test_blocks_move_to_the_worker_that_served() -> None:
    bench = Bench(Ttft(rng=random.Random(1)))
    ids = prompt(1, 1000)
    reservation = bench.pool.reserve(bench.facts(ids))
    before = reservation.worker
    other = next(worker for worker in bench.workers if worker is not before)
    assert reservation.served_by(other.address)
    assert bench.guess(before, ids) == 0
    assert bench.guess(other, ids) == 992
    assert before.load.queued_tokens == 0
    assert other.load.queued_tokens == 1000


def test_what_failed_before_its_first_token_left_no_blocks_but_those_that_were_there() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=1)
    ids = prompt(1, 320)
    first = bench.pool.reserve(bench.facts(ids))
    first.first_token()
    first.settle()
    longer = [*ids, *prompt(2, 320)]
    bench.pool.reserve(bench.facts(longer)).settle()
    assert bench.guess(bench.workers[0], longer) == 320


def test_only_what_is_not_cached_counts_as_waiting() -> None:
    bench = Bench(Ttft(rng=random.Random(1)))
    ids = prompt(1, 1600)
    bench.holds(bench.workers[1], ids)
    reservation = bench.pool.reserve(bench.facts([*ids, *prompt(2, 50)]))
    assert reservation.worker is bench.workers[1]
    assert reservation.worker.load.queued_tokens == 50
    assert reservation.worker.waiting_tokens == 1650


def test_what_was_sent_to_a_worker_with_events_is_forgotten_once_it_has_answered() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=1)
    worker = bench.workers[0]
    assert bench.pool.prefixes is not None
    bench.pool.prefixes.with_events.add(worker)
    ids = prompt(1, 1000)
    reservation = bench.pool.reserve(bench.facts(ids))
    assert bench.guess(worker, ids) == 992
    reservation.first_token()
    reservation.settle()
    assert bench.guess(worker, ids) == 0


def test_a_restarted_worker_is_thought_to_hold_nothing() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=1)
    worker = bench.workers[0]
    ids = prompt(1, 1000)
    bench.holds(worker, ids)
    reservation = bench.pool.reserve(bench.facts(ids))
    bench.pool.members.restarted(worker)
    assert bench.guess(worker, ids) == 0
    reservation.settle()  # takes back what went with the old cache
    assert bench.guess(worker, ids) == 0


def test_blocks_of_another_size_are_not_believed() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=1)
    ids = prompt(1, 1000)
    bench.pool.reserve(bench.facts(ids))
    assert bench.pool.prefixes is not None
    bench.pool.prefixes.resize(64)
    assert bench.guess(bench.workers[0], ids) == 0
    bench.pool.reserve(bench.facts(ids))
    assert bench.guess(bench.workers[0], ids) == 960


def test_namespaces_share_no_blocks() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=1)
    ids = prompt(1, 1000)
    bench.pool.reserve(bench.facts(ids, namespace="lora-1"))
    assert bench.guess(bench.workers[0], ids) == 0
