"""SMG 1.13's rules, by what was measured of SMG itself with three workers and default settings."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from routing_pools import Bench, prompt

from extproc.routing.policies import CacheAware
from extproc.routing.reservation import Reservation
from extproc.routing.worker import ReportedLoad


@pytest.fixture
def bench() -> Bench:
    return Bench(CacheAware(rng=random.Random(1)))


def send(bench: Bench, ids: list[int]) -> Reservation:
    return bench.pool.reserve(bench.facts(ids))


def done(bench: Bench, ids: list[int]) -> str:
    reservation = send(bench, ids)
    reservation.first_token()
    reservation.settle()
    return reservation.worker.label


def test_without_events_the_same_prompt_sticks(bench: Bench) -> None:
    ids = prompt(1, 1000)
    assert len({done(bench, ids) for _ in range(8)}) == 1
    assert bench.rules == ["tree_miss"] + ["tree_match"] * 7


@pytest.mark.parametrize(("shared", "sticks"), [(35, True), (30, False)])
def test_without_events_more_than_the_threshold_must_match(bench: Bench, shared: int, *, sticks: bool) -> None:
    # 1601 tokens in blocks of 16: shares are in whole blocks.
    start = prompt(1, shared * 16)
    first = send(bench, [*start, *prompt(2, 1600 - shared * 16)])
    rules = []
    for seed in range(3, 11):
        again = send(bench, [*start, *prompt(seed, 1600 - shared * 16)])
        rules.append(bench.rules[-1])
        assert (again.worker is first.worker) or not sticks
        again.first_token()
        again.settle()
    assert set(rules) == ({"tree_match"} if sticks else {"tree_miss"})


def test_load_is_counted_in_requests_whatever_their_length(bench: Bench) -> None:
    counts = Counter(send(bench, prompt(seed, 2000 if seed % 2 else 20)).worker.label for seed in range(30))
    assert set(counts.values()) == {10}


def test_with_events_one_block_pins_without_a_minimum(bench: Bench) -> None:
    start = prompt(1, 16)
    bench.holds(bench.workers[1], start)
    assert {done(bench, [*start, *prompt(seed, 1900)]) for seed in range(2, 8)} == {"w1"}
    assert set(bench.rules) == {"event_hit"}


def test_with_events_a_prompt_that_nobody_holds_goes_by_load_and_never_by_what_was_sent(bench: Bench) -> None:
    bench.holds(bench.workers[0], prompt(1, 16))
    send(bench, [*prompt(1, 16), 1])  # it is known by now that events come
    ids = prompt(2, 1000)
    first = send(bench, ids)
    assert send(bench, ids).worker is not first.worker
    assert bench.rules[1:] == ["event_miss"] * 2


def test_most_overlap_wins(bench: Bench) -> None:
    ids = prompt(1, 160)
    bench.holds(bench.workers[0], ids[:48])
    bench.holds(bench.workers[2], ids)
    assert done(bench, [*ids, 1]) == "w2"


def test_a_hot_prompt_with_held_streams_spills_with_the_eighth_request_and_leaves_the_third_worker_idle(
    bench: Bench,
) -> None:
    ids = prompt(1, 1000)
    labels = [send(bench, ids).worker.label for _ in range(60)]
    assert len(set(labels[:7])) == 1
    assert labels[7] != labels[0]
    assert sorted(Counter(labels).values()) == [30, 30]


@pytest.mark.parametrize(
    ("running", "skipped"),
    [
        ((6, 0, 0), False),  # 4 over the mean of 2, and not more
        ((7, 0, 0), True),
        ((28, 20, 20), False),  # over the mean by more than 4, and less than half above it
        ((60, 20, 20), True),
    ],
)
def test_a_holder_is_skipped_only_over_both_bounds(
    bench: Bench, running: tuple[int, int, int], *, skipped: bool
) -> None:
    ids = prompt(1, 160)
    bench.holds(bench.workers[0], ids)
    for worker, count in zip(bench.workers, running, strict=True):
        worker.running = count
    chosen = send(bench, [*ids, 1]).worker
    assert (chosen is not bench.workers[0]) is skipped
    assert bench.rules == ["event_spill" if skipped else "event_hit"]


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "left_out"), [(7, 0.79, False), (8, 0.0, True), (0, 0.8, True), (None, None, False)]
)
def test_workers_that_report_overload_are_left_out(
    bench: Bench, waiting: int | None, kv_usage: float | None, *, left_out: bool
) -> None:
    ids = prompt(1, 160)
    bench.holds(bench.workers[0], ids)
    bench.workers[0].reported = ReportedLoad(1.0, waiting, 0, kv_usage)
    assert (done(bench, [*ids, 1]) != "w0") is left_out


def test_where_all_report_overload_none_is_left_out(bench: Bench) -> None:
    ids = prompt(1, 160)
    bench.holds(bench.workers[0], ids)
    for worker in bench.workers:
        worker.reported = ReportedLoad(1.0, 100, 0, 0.9)
    assert done(bench, [*ids, 1]) == "w0"


def test_generated_tokens_are_not_remembered(bench: Bench) -> None:
    assert send(bench, prompt(1, 100)).generated is None
