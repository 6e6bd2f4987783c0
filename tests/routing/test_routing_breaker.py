"""A breaker keeps requests from a worker that fails them, and lets one find out when it is back."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest

from extproc.routing.breaker import Breaker, BreakerState
from extproc.routing.membership import Membership, Resilience, WorkerSpec
from extproc.routing.worker import Worker, WorkerState


class _Handle:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, _Handle]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> _Handle:
        handle = _Handle(call)
        heapq.heappush(self._due, (self.now_s + delay_s, len(self._due), handle))
        return handle

    def passes(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._due and self._due[0][0] <= end_s:
            self.now_s, _, handle = heapq.heappop(self._due)
            if handle.call is not None:
                handle.call()
        self.now_s = end_s

    @property
    def waiting(self) -> int:
        return sum(handle.call is not None for _, _, handle in self._due)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(3, 5.0, clock.call_later)


def opened(breaker: Breaker) -> Breaker:
    for _ in range(3):
        breaker.failed()
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_only_failures_in_a_row_open_it(breaker: Breaker) -> None:
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.allows
    opened(breaker)
    assert not breaker.allows


def test_half_open_lets_exactly_one_through(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.passes(4.9)
    assert not breaker.allows
    clock.passes(0.2)
    assert breaker.allows
    assert breaker.begins()
    assert not breaker.allows
    breaker.succeeded(trial=True)
    assert (breaker.state, breaker.allows) == (BreakerState.CLOSED, True)


def test_requests_from_before_it_opened_change_nothing(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    breaker.succeeded()
    breaker.failed()
    assert breaker.state is BreakerState.OPEN
    clock.passes(5.0)
    assert breaker.begins()
    breaker.failed()
    breaker.succeeded()
    assert breaker.state is BreakerState.TRIAL


def test_each_trial_that_fails_doubles_the_time_up_to_eight_times(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    for factor in (1, 2, 4, 8, 8):
        clock.passes(5.0 * factor - 0.1)
        assert not breaker.allows
        clock.passes(0.1)
        assert breaker.begins()
        breaker.failed(trial=True)
    clock.passes(40.0)
    breaker.begins()
    breaker.succeeded(trial=True)
    opened(breaker)
    clock.passes(5.0)
    assert breaker.allows


def test_a_trial_that_says_nothing_makes_way_for_another(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.passes(5.0)
    assert breaker.begins()
    breaker.unknown()
    assert breaker.allows
    assert breaker.begins()


def test_a_pool_leaves_an_open_worker_out_and_no_timer_behind_when_it_goes(clock: Clock) -> None:
    members = Membership((), Resilience(3, 5.0), clock.call_later)
    members.update([WorkerSpec("10.0.0.1:1", "a"), WorkerSpec("10.0.0.2:1", "b")])
    for worker in members.workers:
        worker.state = WorkerState.READY
    a, b = members.workers
    assert a.breaker is not None
    opened(a.breaker)
    assert members.candidates == (b,)
    clock.passes(5.0)
    assert (members.candidates, members.trials) == ((a, b), (a,))
    a.breaker.begins()
    assert members.candidates == (b,)
    a.breaker.failed(trial=True)
    members.update([WorkerSpec("10.0.0.2:1", "b")])
    assert clock.waiting == 0


class Heard:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def joined(self, worker: Worker) -> None:
        self.events.append(("joined", worker.label))

    def restarted(self, worker: Worker) -> None:
        self.events.append(("restarted", worker.label))

    def left(self, worker: Worker) -> None:
        self.events.append(("left", worker.label))


def test_observers_hear_of_those_before_them_and_of_every_change() -> None:
    members = Membership([Worker("a", "10.0.0.1:1")])
    heard = Heard()
    members.observe(heard)
    members.update([WorkerSpec("10.0.0.1:1", "a"), WorkerSpec("10.0.0.2:1", "b", ranks=2)])
    members.restarted(members.workers[0])
    members.update([WorkerSpec("10.0.0.2:1", "b", ranks=2)])
    assert heard.events == [
        ("joined", "a"),
        ("joined", "b#0"),
        ("joined", "b#1"),
        ("restarted", "a"),
        ("left", "a"),
    ]


def test_a_worker_that_stays_keeps_what_is_known_of_it_and_one_that_comes_again_is_new() -> None:
    members = Membership([Worker("a", "10.0.0.1:1")])
    (before,) = members.workers
    before.running = 3
    members.update([WorkerSpec("10.0.0.1:1", "renamed", draining=True)])
    assert members.workers == (before,)
    assert (before.label, before.state) == ("renamed", WorkerState.DRAINING)
    members.update([])
    members.update([WorkerSpec("10.0.0.1:1", "a")])
    assert members.workers[0] is not before


def test_one_that_drains_is_no_candidate_and_comes_back_as_healthy_as_it_is() -> None:
    members = Membership([Worker("a", "10.0.0.1:1")])
    (worker,) = members.workers
    worker.state = WorkerState.READY
    assert members.candidates == (worker,)
    members.update([WorkerSpec("10.0.0.1:1", "a", draining=True)])
    assert members.candidates == ()
    members.update([WorkerSpec("10.0.0.1:1", "a")])
    assert members.candidates == (worker,)


def test_a_slow_start_gives_a_tenth_at_first_and_then_more_until_the_full_share() -> None:
    clock = Clock()
    members = Membership((), Resilience(slow_start_s=10.0), clock.call_later, lambda: clock.now_s)
    members.update([WorkerSpec("10.0.0.1:1", "old")])
    members.workers[0].state = WorkerState.READY
    clock.passes(20.0)
    assert list(members.thinned()) == list(members.candidates)
    assert members.warming == ()
    members.update([WorkerSpec("10.0.0.1:1", "old"), WorkerSpec("10.0.0.2:1", "new")])
    members.workers[1].state = WorkerState.READY
    assert members.warming == (members.workers[1],)

    def share() -> float:
        return sum(len(members.thinned()) == 2 for _ in range(2000)) / 2000

    assert 0.05 < share() < 0.15
    clock.passes(5.0)
    assert 0.45 < share() < 0.55
    clock.passes(5.0)
    assert share() == 1.0
    assert members.warming == ()
