"""Checks keep workers' states, for all ranks of an engine at once, and see that an engine has begun anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from time import monotonic

import pytest

from extproc.routing.health import HealthChecks, Verdict
from extproc.routing.membership import Membership, WorkerSpec
from extproc.routing.worker import WorkerState

A = "10.0.0.1:1"


class Engines:
    """Their health, and how often each was asked."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.asked: dict[str, int] = {}
        self.turn = asyncio.Condition()

    async def check(self, address: str) -> Verdict:
        async with self.turn:
            self.asked[address] = self.asked.get(address, 0) + 1
            self.turn.notify_all()
        return self.verdicts.get(address, Verdict.UNHEALTHY)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5), self.turn:
            await self.turn.wait_for(condition)

    async def checks(self, address: str, count: int) -> None:
        """So many more, and what comes of them."""
        goal = self.asked.get(address, 0) + count + 1
        await self.until(lambda: self.asked.get(address, 0) >= goal)


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
async def members(engines: Engines) -> AsyncIterator[Membership]:
    members = Membership()
    checks = HealthChecks(members, engines.check, interval_s=0.005, healthy_after=2, unhealthy_after=3)
    members.observe(checks)
    yield members
    await checks.stop()


async def test_good_checks_in_a_row_make_it_ready_and_failed_ones_put_it_out(
    engines: Engines, members: Membership
) -> None:
    members.update([WorkerSpec(A, "a", ranks=2)])
    assert [worker.state for worker in members.workers] == [WorkerState.STARTING] * 2
    engines.verdicts[A] = Verdict.HEALTHY
    await engines.checks(A, 2)
    assert [worker.state for worker in members.workers] == [WorkerState.READY] * 2
    engines.verdicts[A] = Verdict.UNHEALTHY
    await engines.until(lambda: members.workers[0].state is WorkerState.UNHEALTHY)
    assert members.candidates == ()
    assert [worker.incarnation for worker in members.workers] == [0, 0]


async def test_one_that_was_gone_has_restarted_even_if_it_was_never_out(engines: Engines, members: Membership) -> None:
    members.update([WorkerSpec(A, "a", ranks=2)])
    engines.verdicts[A] = Verdict.GONE
    await engines.checks(A, 2)
    engines.verdicts[A] = Verdict.HEALTHY
    await engines.checks(A, 2)
    assert [worker.incarnation for worker in members.workers] == [0, 0], "its first start is no restart"
    engines.verdicts[A] = Verdict.GONE
    await engines.checks(A, 1)
    engines.verdicts[A] = Verdict.HEALTHY
    await engines.checks(A, 2)
    assert [worker.incarnation for worker in members.workers] == [1, 1]


async def test_none_is_ready_before_envoy_knows_it(engines: Engines, members: Membership) -> None:
    engines.verdicts[A] = Verdict.HEALTHY
    joined_s = monotonic()
    members.update([WorkerSpec(A, "a", wait_s=0.3)])
    changed = asyncio.Event()
    members.candidates_changed = changed.set
    await asyncio.wait_for(changed.wait(), 5)
    assert monotonic() - joined_s >= 0.3
    assert members.candidates == members.workers


async def test_nobody_asks_one_that_has_left(engines: Engines, members: Membership) -> None:
    b = "10.0.0.2:1"
    members.update([WorkerSpec(A, "a", ranks=2), WorkerSpec(b, "b")])
    await engines.checks(A, 1)
    members.update([WorkerSpec(b, "b")])
    await engines.checks(b, 1)
    asked = engines.asked[A]
    await engines.checks(b, 5)
    assert engines.asked[A] == asked


async def test_who_may_be_chosen_is_found_out_once_for_all_ranks(engines: Engines, members: Membership) -> None:
    changes: list[int] = []
    members.candidates_changed = lambda: changes.append(len(members.candidates))
    engines.verdicts[A] = Verdict.HEALTHY
    members.update([WorkerSpec(A, "a", ranks=1024)])
    await engines.until(lambda: members.workers[0].state is WorkerState.READY)
    members.update([])
    assert changes == [0, 1024, 0]
