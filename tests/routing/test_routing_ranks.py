"""Data-parallel ranks of one engine are targets of their own, and a pinned one is not tried again elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from extproc.routing.facts import RouteFacts
from extproc.routing.membership import Membership, Resilience, WorkerSpec
from extproc.routing.policies import RoundRobin
from extproc.routing.pool import Pool
from extproc.routing.worker import WorkerState


class _Never:
    def cancel(self) -> None:
        pass


def call_later(delay_s: float, call: Callable[[], None]) -> _Never:
    """A clock that stands still."""
    return _Never()


def test_each_rank_has_its_own_load_at_the_engines_address() -> None:
    members = Membership()
    members.update([WorkerSpec("10.0.0.1:1", "a", ranks=2), WorkerSpec("10.0.0.2:1", "b")])
    for worker in members.workers:
        worker.state = WorkerState.READY
    assert [(w.label, w.address, w.rank) for w in members.candidates] == [
        ("a#0", "10.0.0.1:1", 0),
        ("a#1", "10.0.0.1:1", 1),
        ("b", "10.0.0.2:1", None),
    ]
    members.workers[0].running = 4
    assert members.workers[1].running == 0
    assert members.find("10.0.0.1:1") is members.workers[0]


def test_an_engine_that_changes_its_ranks_is_other_targets() -> None:
    members = Membership()
    members.update([WorkerSpec("10.0.0.1:1", "a")])
    (whole,) = members.workers
    members.update([WorkerSpec("10.0.0.1:1", "a", ranks=2)])
    assert whole not in members.workers
    kept = members.workers[0]
    members.update([WorkerSpec("10.0.0.1:1", "a", ranks=4)])
    assert members.workers[0] is kept
    assert [worker.rank for worker in members.workers] == [0, 1, 2, 3]


def test_a_pinned_rank_is_the_only_destination_and_a_trial_none_for_retries() -> None:
    members = Membership()
    members.update([WorkerSpec("10.0.0.1:1", "a", ranks=2), WorkerSpec("10.0.0.2:1", "b")])
    for worker in members.workers:
        worker.state = WorkerState.READY
    pool = Pool("p", (), RoundRobin(), 2, members)
    chosen = [pool.reserve(RouteFacts(1)) for _ in range(2)]
    assert [(each.worker.rank, each.destinations) for each in chosen] == [(0, "10.0.0.1:1"), (1, "10.0.0.1:1")]


def test_a_worker_on_trial_is_no_destination_for_retries() -> None:
    members = Membership((), Resilience(1, 5.0), call_later)
    members.update([WorkerSpec(f"10.0.0.{number}:1", str(number)) for number in range(3)])
    for worker in members.workers:
        worker.state = WorkerState.READY
    pool = Pool("p", (), RoundRobin(), 2, members)
    breaker = members.workers[1].breaker
    assert breaker is not None
    breaker.failed()
    breaker._half_open()
    assert members.trials == (members.workers[1],)
    assert pool.reserve(RouteFacts(1)).destinations == "10.0.0.0:1,10.0.0.2:1"
    trial = pool.reserve(RouteFacts(1))
    assert trial.destinations == "10.0.0.1:1,10.0.0.2:1,10.0.0.0:1"
    assert members.workers[1] not in members.candidates
    trial.first_token()
    assert members.workers[1] in members.candidates
