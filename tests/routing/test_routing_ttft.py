"""The default policy: caches where they pay, load where it is, and everything idle in use."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from routing_pools import Bench, prompt

from extproc.routing.policies import Ttft
from extproc.routing.reservation import Reservation


@pytest.fixture
def bench() -> Bench:
    return Bench(Ttft(rng=random.Random(1)), workers=4)


def send(bench: Bench, ids: list[int]) -> Reservation:
    return bench.pool.reserve(bench.facts(ids))


def finish(bench: Bench, reservation: Reservation) -> None:
    reservation.first_token()
    reservation.settle()


def test_a_prompt_goes_where_it_is_cached(bench: Bench) -> None:
    for worker in bench.workers:
        ids = prompt(int(worker.label[1:]), 4000)
        bench.holds(worker, ids)
        assert send(bench, [*ids, 1, 2, 3]).worker is worker


def test_a_conversation_stays_with_its_cache(bench: Bench) -> None:
    ids = prompt(1, 3000)
    first = send(bench, ids)
    finish(bench, first)
    for _ in range(10):
        ids += prompt(len(ids), 200)
        turn = send(bench, ids)
        assert turn.worker is first.worker
        finish(bench, turn)
    assert bench.rules[1:] == ["cached"] * 10


def test_the_generated_tokens_count_for_the_next_turn(bench: Bench) -> None:
    ids = prompt(1, 100)
    turn = send(bench, ids)
    answer = prompt(2, 500)
    turn.first_token()
    assert turn.generated is not None
    turn.generated.extend(answer)
    turn.settle()
    # The last generated token was not fed to the model.
    assert bench.guess(turn.worker, [*ids, *answer, 7]) == 592
    assert bench.guess(turn.worker, [*ids, *prompt(3, 500)]) == 96


def test_one_shared_block_pins_nobody(bench: Bench) -> None:
    shared = prompt(1, 16)
    bench.holds(bench.workers[0], shared)
    running = [send(bench, [*shared, *prompt(seed, 2000)]) for seed in range(2, 42)]
    counts = Counter(each.worker.label for each in running)
    assert min(counts.values()) >= 8
    assert max(counts.values()) <= 12


def test_a_hot_prefix_spreads_over_as_many_workers_as_its_load_needs(bench: Bench) -> None:
    hot = prompt(1, 8000)
    bench.holds(bench.workers[0], hot)
    alone = send(bench, [*hot, *prompt(2, 100)])
    assert alone.worker is bench.workers[0]
    finish(bench, alone)
    # Short questions to it queue there while that is quicker than computing it elsewhere, and then all take part.
    running = [send(bench, [*hot, *prompt(seed, 1000)]) for seed in range(3, 103)]
    counts = Counter(each.worker.label for each in running)
    assert set(counts) == {"w0", "w1", "w2", "w3"}
    assert all(each.worker is bench.workers[0] for each in running[:5])
    assert max(counts.values()) < 2 * min(counts.values())


def test_idle_workers_are_used_before_queues_grow(bench: Bench) -> None:
    assert len({send(bench, prompt(seed, 1000)).worker for seed in range(4)}) == 4


def test_what_was_just_sent_counts_at_once_in_tokens_and_not_in_requests(bench: Bench) -> None:
    long = send(bench, prompt(1, 20_000))
    short = [send(bench, prompt(seed, 500)) for seed in range(2, 32)]
    assert all(each.worker is not long.worker for each in short)


def test_a_worker_that_was_seen_to_be_slow_gets_less() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=2)
    slow, fast = bench.workers
    for seed in range(40):
        for worker, rate in ((slow, 2000.0), (fast, 8000.0)):
            tokens = 500 + 100 * (seed % 20)
            work = worker.load.sent(tokens, bench.now_s)
            worker.load.first_token(work, bench.now_s + tokens / rate)
            worker.load.ended(work, bench.now_s + tokens / rate)
        bench.now_s += 10.0
    counts = Counter(send(bench, prompt(seed, 1000)).worker.label for seed in range(100, 150))
    assert counts["w1"] == pytest.approx(40, abs=3)


def test_blocks_that_others_need_have_a_price_where_the_cache_is_full() -> None:
    bench = Bench(Ttft(rng=random.Random(1), near=0.0), workers=2)
    full, empty = bench.workers
    for seed in range(20):  # prompts are found in caches: the share of that is what eviction is priced by
        ids = prompt(seed, 1000)
        bench.holds(empty, ids)
        finish(bench, send(bench, ids))
    full.load.kv_fill = 1.0
    empty.load.kv_fill = 0.0
    assert {send_and_finish(bench, prompt(seed, 1000)) for seed in range(100, 110)} == {"w1"}


def send_and_finish(bench: Bench, ids: list[int]) -> str:
    reservation = send(bench, ids)
    finish(bench, reservation)
    return reservation.worker.label


def test_near_equals_are_chosen_by_chance(bench: Bench) -> None:
    assert {send_and_finish(bench, prompt(seed, 10)) for seed in range(60)} == {"w0", "w1", "w2", "w3"}


def test_the_estimate_is_compared_with_what_came(bench: Bench) -> None:
    seen: list[tuple[float, float]] = []
    bench.pool.estimate_seen = lambda expected_s, seen_s: seen.append((expected_s, seen_s))
    reservation = send(bench, prompt(1, 8000))
    bench.now_s += 1.5
    reservation.first_token()
    ((expected_s, seen_s),) = seen
    assert expected_s == pytest.approx(1.03, abs=0.01)
    assert seen_s == 1.5


def test_an_answer_that_comes_whole_says_nothing_of_the_first_token(bench: Bench) -> None:
    seen: list[float] = []
    bench.pool.estimate_seen = lambda expected_s, seen_s: seen.append(seen_s)
    reservation = bench.pool.reserve(bench.facts(prompt(1, 8000), streams=False))
    bench.now_s += 30.0
    assert reservation.worker.load.backlog_tokens(bench.now_s) == 0  # it is decoding by now
    reservation.first_token()
    assert not seen


def test_the_decision_explains_itself_in_bounds() -> None:
    bench = Bench(Ttft(rng=random.Random(1)), workers=30)
    ids = prompt(1, 4000)
    bench.holds(bench.workers[3], ids)
    _, decision = bench.pool.reserve_explained(bench.facts([*ids, 1]))
    assert (decision.worker, decision.rule, decision.others) == ("w3", "cached", 22)
    assert len(decision.candidates) == 8
    first = decision.candidates[0]
    assert (first.worker, first.cached_tokens, first.backlog_tokens) == ("w3", 4000, 0)
    assert first.estimate_ms == pytest.approx(30, abs=1)
    assert "4000 cached" in decision.reason


def test_the_decision_says_why_it_left_a_cache(bench: Bench) -> None:
    ids = prompt(1, 1000)
    bench.holds(bench.workers[0], ids)
    bench.workers[0].load.sent(50_000, bench.now_s)
    _, decision = bench.pool.reserve_explained(bench.facts(ids))
    assert decision.worker != "w0"
    assert decision.rule == "spread"
    assert "w0 holds more" in decision.reason


def measure(bench: Bench, number: int, tokens_per_s: float) -> None:
    load = bench.workers[number].load
    for tokens in range(500, 10_500, 500):
        bench.now_s += tokens / tokens_per_s
        load.meter.add(tokens, tokens / tokens_per_s, load.pace, bench.now_s)


def test_one_that_is_measured_looks_no_better_than_those_that_are_not_yet(bench: Bench) -> None:
    """Engines may be many times faster than what is assumed of all before anything is seen."""
    send_and_finish(bench, prompt(0, 10))
    measure(bench, 0, 64_000.0)
    running = [send(bench, prompt(seed, 3000)) for seed in range(1, 41)]
    counts = Counter(each.worker.label for each in running)
    assert min(counts.values()) >= 8
    assert max(counts.values()) <= 12


def test_a_worker_that_hung_is_tried_again_after_a_while(bench: Bench) -> None:
    for number in range(4):
        measure(bench, number, 100.0 if number == 0 else 8000.0)
    assert "w0" not in {send_and_finish(bench, prompt(seed, 1000)) for seed in range(40)}
    bench.now_s += 61.0
    for number in (1, 2, 3):
        measure(bench, number, 8000.0)
    assert "w0" in {send_and_finish(bench, prompt(seed, 1000)) for seed in range(40, 80)}
