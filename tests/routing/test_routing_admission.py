"""What a pool with caps takes at once, who waits and in which order, and who is sent away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.ir import ErrorKind, RequestError
from extproc.routing.admission import Admission, Caps, Refusal
from extproc.routing.fair_queue import FairQueue, Waiting
from extproc.routing.membership import Membership
from extproc.routing.worker import Worker, WorkerState


class Held:
    """A reservation of the worker with fewest requests that has room."""

    def __init__(self, pool: Pool, tokens: int) -> None:
        self.pool = pool
        self.tokens = tokens
        self.settled = 0
        candidates = pool.admission.with_room(pool.members.candidates, tokens)
        self.worker = min(candidates, key=lambda worker: worker.running)
        self.worker.running += 1
        self.worker.waiting_tokens += tokens

    def settle(self) -> None:
        self.settled += 1
        self.worker.running -= 1
        self.worker.waiting_tokens -= self.tokens
        self.pool.admission.freed()


class Pool:
    def __init__(self, caps: Caps, workers: int = 1) -> None:
        self.members = Membership([Worker(f"w{i}", f"10.0.0.{i}:1") for i in range(workers)])
        for worker in self.members.workers:
            worker.state = WorkerState.READY
        self.waits: list[float] = []
        self.refusals: list[Refusal] = []
        self.made: list[Held] = []
        self.admission: Admission[Held] = Admission(
            caps, self.members, waited=self.waits.append, refused=self.refusals.append
        )

    def admit(self, tokens: int = 10, tenant: str = "", priority: int = 0) -> Held | Awaitable[Held]:
        return self.admission.admit(tokens, tenant, priority, lambda: self._reserve(tokens))

    def at_once(self, tokens: int = 10) -> Held:
        held = self.admit(tokens)
        assert isinstance(held, Held)
        return held

    def later(self, tokens: int = 10, tenant: str = "", priority: int = 0) -> asyncio.Future[Held]:
        awaitable = self.admit(tokens, tenant, priority)
        assert not isinstance(awaitable, Held)
        return asyncio.ensure_future(awaitable)

    def _reserve(self, tokens: int) -> Held:
        self.made.append(Held(self, tokens))
        return self.made[-1]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_up_to_the_caps_everybody_gets_in_at_once_and_the_next_when_one_ends() -> None:
    pool = Pool(Caps(worker_requests=2), workers=2)
    first = [pool.at_once() for _ in range(4)]
    assert [worker.running for worker in pool.members.workers] == [2, 2]
    waiting = pool.later()
    await turns()
    assert (waiting.done(), pool.admission.waiting_requests, pool.admission.waiting_tokens) == (False, 1, 10)
    first[2].settle()
    held = await waiting
    assert held.worker is first[2].worker
    assert len(pool.waits) == 1


async def test_caps_in_tokens_let_a_prompt_that_is_over_them_in_where_none_wait() -> None:
    pool = Pool(Caps(worker_tokens=100))
    huge = pool.at_once(5000)
    waiting = pool.later(1)
    await turns()
    assert not waiting.done()
    huge.settle()
    assert (await waiting).tokens == 1
    assert pool.at_once(99).tokens == 99


@pytest.mark.parametrize("caps", [Caps(pool_requests=2), Caps(pool_tokens=20)])
async def test_a_pools_own_caps_count_all_its_workers(caps: Caps) -> None:
    pool = Pool(caps, workers=3)
    first = pool.at_once()
    pool.at_once()
    waiting = pool.later()
    await turns()
    assert not waiting.done()
    first.settle()
    await waiting


async def test_who_comes_later_does_not_overtake_though_there_is_room_for_it() -> None:
    pool = Pool(Caps(worker_tokens=100))
    held = pool.at_once(60)
    large = pool.later(80)
    await turns()
    small = pool.later(10)
    await turns()
    assert not small.done()
    held.settle()
    assert [(await each).tokens for each in (large, small)] == [80, 10]


async def test_a_full_queue_refuses_with_a_time_to_come_again() -> None:
    pool = Pool(Caps(worker_requests=1, queue_requests=2, retry_after_s=7.0))
    pool.at_once()
    waiting = [pool.later(), pool.later()]
    await turns()
    with pytest.raises(RequestError) as caught:
        await pool.later()
    info = caught.value.info
    assert (info.kind, info.code, info.retry_after_s) == (ErrorKind.RATE_LIMIT, "queue_full", 7.0)
    assert pool.refusals == [Refusal.FULL]
    for each in waiting:
        each.cancel()
    await turns()


async def test_the_tokens_of_those_who_wait_are_bounded_too() -> None:
    pool = Pool(Caps(worker_requests=1, queue_tokens=100))
    pool.at_once()
    waiting = pool.later(90)
    await turns()
    with pytest.raises(RequestError, match="as much as they may"):
        await pool.later(11)
    waiting.cancel()
    await turns()


async def test_a_higher_priority_goes_first_and_takes_the_place_of_the_newest_lower_one() -> None:
    pool = Pool(Caps(worker_requests=1, queue_requests=3))
    held = pool.at_once()
    low = [pool.later(priority=-1), pool.later(priority=-1), pool.later(priority=0)]
    await turns()
    high = pool.later(priority=5)
    with pytest.raises(RequestError) as caught:
        await low[1]
    assert caught.value.info.code == "queue_displaced"
    for expected in (high, low[2], low[0]):
        held.settle()
        held = await asyncio.wait_for(expected, 5)
    assert pool.refusals == [Refusal.DISPLACED]


async def test_who_waits_too_long_is_sent_away_and_who_came_later_waits_on() -> None:
    pool = Pool(Caps(worker_requests=1, queue_s=0.1))
    held = pool.at_once()
    early = pool.later()
    await asyncio.sleep(0.05)
    late = pool.later()
    with pytest.raises(RequestError) as caught:
        await early
    assert caught.value.info.code == "queue_timeout"
    assert not late.done()
    held.settle()
    await late


async def test_a_client_that_leaves_frees_its_place_at_once() -> None:
    pool = Pool(Caps(worker_requests=1, queue_requests=1))
    held = pool.at_once()
    leaving = pool.later()
    await turns()
    leaving.cancel()
    await turns()
    assert pool.admission.waiting_requests == 0
    staying = pool.later()
    held.settle()
    await staying
    assert len(pool.made) == 2


async def test_a_client_that_leaves_in_the_very_turn_in_which_it_gets_in_holds_nothing() -> None:
    pool = Pool(Caps(worker_requests=1))
    held = pool.at_once()
    leaving, staying = pool.later(), pool.later()
    await turns()
    held.settle()
    pool.admission._pump()
    leaving.cancel()
    (await asyncio.wait_for(staying, 5)).settle()
    assert leaving.cancelled()
    assert [each.settled for each in pool.made] == [1, 1, 1]
    assert pool.members.workers[0].running == 0


async def test_a_client_that_leaves_just_before_its_turn_is_passed_over() -> None:
    pool = Pool(Caps(worker_requests=1))
    held = pool.at_once()
    leaving, staying = pool.later(), pool.later()
    await turns()
    held.settle()
    leaving.cancel()
    pool.admission._pump()
    await asyncio.wait_for(staying, 5)
    assert leaving.cancelled()


async def test_an_awaitable_that_nobody_ever_starts_leaves_nothing_behind() -> None:
    pool = Pool(Caps(worker_requests=1))
    pool.at_once()
    waiting = pool.later()
    waiting.cancel()  # before its first step
    await turns()
    assert pool.admission.waiting_requests == 0


async def test_those_who_wait_get_in_when_a_worker_comes_and_wait_while_there_is_none() -> None:
    pool = Pool(Caps(worker_requests=1), workers=2)
    one, two = pool.members.workers
    two.state = WorkerState.UNHEALTHY
    held = pool.at_once()
    waiting = pool.later()
    await turns()
    one.state = WorkerState.UNHEALTHY
    held.settle()
    await turns()
    assert not waiting.done()
    two.state = WorkerState.READY
    assert (await asyncio.wait_for(waiting, 5)).worker is two


class Item(Waiting):
    pass


def served(queue: FairQueue[Item]) -> list[Item]:
    out = []
    while (item := queue.next()) is not None:
        assert queue.next() is item
        queue.take(item)
        out.append(item)
    return out


def test_tenants_get_equal_tokens_whatever_the_size_of_their_requests() -> None:
    queue: FairQueue[Item] = FairQueue()
    for _ in range(400):
        queue.add(Item(100, "small", 0))
    for _ in range(4):
        queue.add(Item(10_000, "large", 0))
    got = {"small": 0, "large": 0}
    gaps = []
    for item in served(queue):
        got[item.tenant] += item.tokens
        gaps.append(abs(got["small"] - got["large"]))
    assert max(gaps) <= 10_000 + 2 * 4096
    assert got == {"small": 40_000, "large": 40_000}


@given(
    st.lists(
        st.tuples(st.integers(1, 2_000_000), st.sampled_from("abc"), st.integers(-2, 2), st.booleans()), max_size=60
    )
)
def test_a_queue_serves_each_that_was_not_removed_once_in_order_of_priority_and_arrival(
    items: list[tuple[int, str, int, bool]],
) -> None:
    queue: FairQueue[Item] = FairQueue()
    added = [(Item(tokens, tenant, priority), leaves) for tokens, tenant, priority, leaves in items]
    for item, _ in added:
        queue.add(item)
    for item, leaves in added:
        if leaves:
            assert queue.remove(item)
            assert not queue.remove(item)
    stay = [item for item, leaves in added if not leaves]
    assert (len(queue), queue.tokens) == (len(stay), sum(item.tokens for item in stay))
    order = served(queue)
    assert sorted(map(id, order)) == sorted(map(id, stay))
    assert [item.priority for item in order] == sorted((item.priority for item in stay), reverse=True)
    for tenant in "abc":
        for priority in range(-2, 3):
            mine = [i for i in stay if (i.tenant, i.priority) == (tenant, priority)]
            assert [i for i in order if (i.tenant, i.priority) == (tenant, priority)] == mine
    assert (len(queue), queue.tokens) == (0, 0)


async def test_who_has_waited_for_workers_that_never_came_back_is_told_that_there_are_none() -> None:
    pool = Pool(Caps(worker_requests=1, queue_s=0.05))
    pool.at_once()
    waiting = pool.later()
    await turns()
    pool.members.workers[0].state = WorkerState.UNHEALTHY
    with pytest.raises(ValueError, match="min"):  # what this pool's `reserve` says of no candidates
        await waiting
    assert pool.refusals == []
    assert pool.admission.waiting_requests == 0
