"""What waits on a worker, as far as one processor can know, and how fast it goes."""

from __future__ import annotations

import random

import pytest

from extproc.routing.load import UNMEASURED, WorkerLoad
from extproc.routing.pace import Pace, PaceMeter

RATE = UNMEASURED.tokens_per_s


def test_what_waits_goes_down_at_the_workers_pace() -> None:
    load = WorkerLoad()
    load.sent(int(RATE), 10.0)
    assert [load.backlog_tokens(10.0 + part) for part in (0.0, 0.25, 0.75)] == [RATE, 0.75 * RATE, 0.25 * RATE]


def test_a_prompt_is_not_over_before_its_first_token_and_the_next_not_begun() -> None:
    load = WorkerLoad()
    first = load.sent(1000, 10.0)
    load.sent(5000, 10.0)
    assert load.backlog_tokens(99.0) == 5000
    load.first_token(first, 99.0)
    assert load.backlog_tokens(99.0) == 5000
    assert load.backlog_tokens(99.1) == pytest.approx(5000 - RATE / 10)


def test_prompts_without_a_visible_first_token_are_over_when_their_time_is() -> None:
    load = WorkerLoad()
    load.sent(1000, 10.0, silent=True)
    load.sent(1000, 10.0, silent=True)
    load.sent(1000, 10.0)
    assert load.backlog_tokens(10.0 + 1500 / RATE) == pytest.approx(1500)
    assert (load.decoding, load.queued_tokens) == (1, 2000)
    assert load.backlog_tokens(99.0) == 0
    assert (load.decoding, load.queued_tokens) == (2, 1000)


def test_who_gives_up_makes_room_for_the_next() -> None:
    load = WorkerLoad()
    first = load.sent(8000, 10.0)
    load.sent(2000, 10.0)
    load.ended(first, 10.5)
    assert load.backlog_tokens(10.5) == 2000


@pytest.mark.parametrize(("reported", "foreign"), [(5000, 4000), (1000, 0), (0, 0)])
def test_what_an_engine_reports_beyond_what_we_know_is_foreign_and_fades(reported: int, foreign: int) -> None:
    load = WorkerLoad()
    load.peer_tokens = 1000
    load.reported(20.0, 20.0, requests=1, tokens=reported)
    assert [load.backlog_tokens(20.0 + age) - 1000 for age in (0.0, 1.0, 2.0)] == [foreign, foreign / 2, 0]


def test_a_report_from_before_our_last_dispatch_says_nothing() -> None:
    load = WorkerLoad()
    load.sent(100, 20.0)
    load.reported(19.9, 20.1, requests=50, tokens=100_000)
    assert load.backlog_tokens(20.0) == 100


def test_engines_that_count_only_requests_are_believed_to_have_prompts_like_ours() -> None:
    load = WorkerLoad()
    for _ in range(200):
        work = load.sent(400, 10.0)
        load.first_token(work, 10.0)
        load.ended(work, 10.0)
    load.reported(20.0, 20.0, requests=10)
    assert load.backlog_tokens(20.0) == pytest.approx(4000, rel=0.05)


def test_the_pace_is_the_slope_and_the_rest_its_base() -> None:
    meter = PaceMeter()
    chance = random.Random(1)
    for _ in range(200):
        tokens = chance.randrange(100, 20_000)
        meter.add(tokens, 0.05 + tokens / 5000 + chance.uniform(-0.02, 0.02), meter.pace or UNMEASURED, 10.0)
    assert meter.pace is not None
    assert meter.pace.tokens_per_s == pytest.approx(5000, rel=0.02)
    assert meter.pace.base_s == pytest.approx(0.05, abs=0.03)


def test_prompts_of_one_length_say_nothing_of_the_slope() -> None:
    meter = PaceMeter()
    for _ in range(100):
        meter.add(40, 0.02, Pace(8000.0, 0.03), 10.0)
    assert meter.pace is None


def test_what_was_measured_long_ago_is_forgotten() -> None:
    meter = PaceMeter()
    for number in range(30):
        meter.add(500 * (number % 10 + 1), 1.0 * (number % 10 + 1), UNMEASURED, 10.0 + number)
    meter.forget_old(90.0)
    assert meter.pace is not None
    meter.forget_old(110.0)
    assert meter.pace is None


def test_a_worker_that_hung_once_is_not_slow_for_ever() -> None:
    meter = PaceMeter()
    for number in range(30):
        meter.add(500 * (number % 10 + 1), 0.0625 * (number % 10 + 1), UNMEASURED, 10.0)
    meter.add(5000, 600.0, UNMEASURED, 10.0)
    assert meter.pace is not None
    assert meter.pace.tokens_per_s > 4000


def test_queued_prompts_measure_the_pace_too() -> None:
    """Under load a queue is never empty, and the pace may not stay a guess then."""
    load = WorkerLoad()
    now_s = 10.0
    works = [(tokens, load.sent(tokens, now_s)) for tokens in range(500, 20_500, 500)]
    for tokens, work in works:
        now_s += tokens / 3000
        load.first_token(work, now_s)
    assert load.pace.tokens_per_s == pytest.approx(3000, rel=0.02)


def test_prompts_that_were_computed_in_one_step_are_one_sample() -> None:
    load = WorkerLoad()
    now_s = 10.0
    for step in range(60):
        works = [load.sent(100 + 10 * step, now_s) for _ in range(10)]
        now_s += (100 + 10 * step) * 10 / 4000
        for work in works:
            load.first_token(work, now_s)
        now_s += 1.0
    assert load.pace.tokens_per_s == pytest.approx(4000, rel=0.1)
