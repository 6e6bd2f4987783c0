"""A reservation's load is on one worker, moves with the request, and is given back exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.ir import ErrorKind, ModelCard, RequestError
from extproc.routing.facts import RouteFacts
from extproc.routing.policies import LeastLoad, Policy, Random, RoundRobin
from extproc.routing.pool import ModelTable, ModelTarget, Pool
from extproc.routing.worker import Worker, WorkerState


def workers(count: int) -> list[Worker]:
    result = [Worker(f"w{i}", f"10.0.0.{i}:1") for i in range(count)]
    for worker in result:
        worker.state = WorkerState.READY
    return result


def pool(count: int = 3, policy: Policy | None = None, retries: int = 2) -> Pool:
    return Pool("p", workers(count), policy or RoundRobin(), retries)


def loads(a_pool: Pool) -> list[tuple[int, int]]:
    return [(worker.waiting_tokens, worker.running) for worker in a_pool.workers]


def test_round_robin_takes_each_in_turn_and_names_the_next_for_retries() -> None:
    a_pool = pool(4)
    assert [a_pool.reserve(RouteFacts(1)).destinations for _ in range(5)] == [
        "10.0.0.0:1,10.0.0.1:1,10.0.0.2:1",
        "10.0.0.1:1,10.0.0.2:1,10.0.0.3:1",
        "10.0.0.2:1,10.0.0.3:1,10.0.0.0:1",
        "10.0.0.3:1,10.0.0.0:1,10.0.0.1:1",
        "10.0.0.0:1,10.0.0.1:1,10.0.0.2:1",
    ]


def test_without_retries_one_destination_is_named() -> None:
    assert pool(4, retries=0).reserve(RouteFacts(1)).destinations == "10.0.0.0:1"


def test_least_load_counts_prompt_tokens_that_wait_not_requests() -> None:
    a_pool = pool(2, LeastLoad(random.Random(1)))
    first = a_pool.reserve(RouteFacts(1000))
    others = [a_pool.reserve(RouteFacts(10)) for _ in range(5)]
    assert all(other.worker is not first.worker for other in others)
    first.first_token()
    assert a_pool.reserve(RouteFacts(10)).worker is first.worker


def test_among_equals_least_load_takes_the_one_with_fewer_running() -> None:
    a_pool = pool(2, LeastLoad(random.Random(1)))
    first = a_pool.reserve(RouteFacts(0))
    assert a_pool.reserve(RouteFacts(0)).worker is not first.worker


def test_among_full_equals_least_load_spreads() -> None:
    a_pool = pool(3, LeastLoad(random.Random(1)))
    chosen = set()
    for _ in range(50):
        reservation = a_pool.reserve(RouteFacts(5))
        chosen.add(reservation.worker.label)
        reservation.settle()
    assert chosen == {"w0", "w1", "w2"}


def test_random_reaches_all_workers() -> None:
    a_pool = pool(3, Random(random.Random(1)))
    assert {a_pool.reserve(RouteFacts(1)).worker.label for _ in range(50)} == {"w0", "w1", "w2"}


def test_workers_that_are_not_ready_are_not_chosen() -> None:
    a_pool = pool(3)
    a_pool.workers[1].state = WorkerState.UNHEALTHY
    a_pool.workers[2].state = WorkerState.STARTING
    assert {a_pool.reserve(RouteFacts(1)).destinations for _ in range(3)} == {"10.0.0.0:1"}


def test_without_candidates_it_is_503_and_never_404() -> None:
    a_pool = pool(1)
    a_pool.workers[0].state = WorkerState.UNHEALTHY
    with pytest.raises(RequestError) as raised:
        a_pool.reserve(RouteFacts(1))
    assert raised.value.info.kind is ErrorKind.UNAVAILABLE
    assert raised.value.info.retry_after_s


def test_a_decision_shows_what_the_policy_saw() -> None:
    a_pool = pool(2, LeastLoad(random.Random(1)))
    first = a_pool.reserve(RouteFacts(100))
    _, decision = a_pool.reserve_explained(RouteFacts(7))
    assert decision.worker != first.worker.label
    assert (decision.policy, decision.prompt_tokens) == ("least_load", 7)
    assert [(c.worker, c.waiting_tokens) for c in decision.candidates] == [
        (decision.worker, 0),
        (first.worker.label, 100),
    ]
    assert decision.rule == "least_load"
    assert decision.reason == "least load of 2: 0 prompt tokens waiting, 0 running"


def test_load_moves_to_the_host_that_served() -> None:
    a_pool = pool(2)
    reservation = a_pool.reserve(RouteFacts(50))
    assert reservation.served_by("10.0.0.1:1")
    assert loads(a_pool) == [(0, 0), (50, 1)]
    reservation.settle()
    assert loads(a_pool) == [(0, 0), (0, 0)]


def test_a_host_outside_the_pool_is_told() -> None:
    a_pool = pool(2)
    reservation = a_pool.reserve(RouteFacts(50))
    assert not reservation.served_by("192.0.2.1:1")
    assert loads(a_pool) == [(50, 1), (0, 0)]


Step = Callable[[object], object]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["first_token", "settle", "served0", "served2", "other"])),
        max_size=40,
    )
)
def test_whatever_happens_to_requests_the_load_is_never_negative_and_ends_at_nothing(
    steps: list[tuple[int, str]],
) -> None:
    a_pool = pool(3)
    reservations = [a_pool.reserve(RouteFacts(10 * (i + 1))) for i in range(6)]
    for index, step in steps:
        reservation = reservations[index]
        if step == "first_token":
            reservation.first_token()
        elif step == "settle":
            reservation.settle()
        elif step == "other":
            reservation.served_by("192.0.2.1:1")
        else:
            reservation.served_by(f"10.0.0.{step[-1]}:1")
        assert all(tokens >= 0 and running >= 0 for tokens, running in loads(a_pool))
    for reservation in reservations:
        reservation.settle()
    assert loads(a_pool) == [(0, 0)] * 3


def test_a_model_of_several_pools_is_split_by_weight() -> None:
    first, second = Pool("a", workers(1), RoundRobin(), 0), Pool("b", workers(1), RoundRobin(), 0)
    table = ModelTable({"m": [ModelTarget(first, 3), ModelTarget(second, 1)]}, [], random.Random(1))
    chosen = [table.pool_for("m").name for _ in range(400)]
    assert 240 < chosen.count("a") < 360
    first.workers[0].state = WorkerState.UNHEALTHY
    assert {table.pool_for("m").name for _ in range(20)} == {"b"}
    second.workers[0].state = WorkerState.UNHEALTHY
    assert table.pool_for("m") in (first, second)


def test_a_weight_of_nothing_gets_nothing() -> None:
    first, second = Pool("a", workers(1), RoundRobin(), 0), Pool("b", workers(1), RoundRobin(), 0)
    table = ModelTable({"m": [ModelTarget(first, 0), ModelTarget(second, 1)]}, [ModelCard("m", 0)], random.Random(1))
    assert {table.pool_for("m").name for _ in range(50)} == {"b"}


def test_an_unknown_model_is_not_found() -> None:
    table = ModelTable({}, [])
    with pytest.raises(RequestError) as raised:
        table.pool_for("gpt-x")
    assert raised.value.info.kind is ErrorKind.MODEL_NOT_FOUND
