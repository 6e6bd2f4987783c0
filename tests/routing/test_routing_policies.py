"""Policies that need no prefix index: each by what it promises."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from routing_pools import Bench, prompt, ready_workers

from extproc.routing.facts import RouteFacts
from extproc.routing.policies import (
    Bucket,
    ConsistentHashing,
    Passthrough,
    PowerOfTwo,
    PrefixHash,
    Session,
    SessionTokens,
)
from extproc.routing.policies.base import Policy
from extproc.token_ids import TokenIds

KEY = b"0123456789abcdef0123456789abcdef"


def rank(policy: Policy, workers: list, facts: RouteFacts) -> list[str]:  # type: ignore[type-arg]
    return [worker.label for worker in policy.rank(workers, facts).workers]


def test_passthrough_takes_the_first_that_can_serve() -> None:
    workers = ready_workers(3)
    assert rank(Passthrough(), workers, RouteFacts(1)) == ["w0", "w1", "w2"]
    assert rank(Passthrough(), workers[1:], RouteFacts(1)) == ["w1", "w2"]


def test_power_of_two_takes_the_lighter_of_two_that_chance_picks() -> None:
    workers = ready_workers(3)
    workers[0].waiting_tokens, workers[1].waiting_tokens, workers[2].waiting_tokens = 300, 200, 100
    policy = PowerOfTwo(random.Random(1))
    counts = Counter(rank(policy, workers, RouteFacts(1))[0] for _ in range(3000))
    assert counts["w0"] == 0
    assert counts["w2"] == pytest.approx(2000, abs=120)


def test_power_of_two_with_one_worker_takes_that() -> None:
    assert PowerOfTwo().rank(ready_workers(1), RouteFacts(1)).reason == "only_one"


def with_key(key: str, tenant: str = "") -> RouteFacts:
    return RouteFacts(1, headers={"x-routing-key": key}, tenant=tenant)


def test_the_same_key_leads_to_the_same_worker_in_every_process() -> None:
    workers = ready_workers(8)
    first, second = ConsistentHashing("x-routing-key"), ConsistentHashing("x-routing-key")
    for number in range(50):
        assert rank(first, workers, with_key(str(number))) == rank(second, workers[::-1], with_key(str(number)))


def test_keys_spread_evenly_and_only_a_lost_workers_keys_move() -> None:
    workers = ready_workers(8)
    policy = ConsistentHashing("x-routing-key")
    before = {str(number): rank(policy, workers, with_key(str(number)))[0] for number in range(4000)}
    counts = Counter(before.values())
    assert min(counts.values()) > 400
    assert max(counts.values()) < 600
    after = {key: rank(policy, workers[:-1], with_key(key))[0] for key in before}
    assert all(after[key] == label for key, label in before.items() if label != "w7")
    assert len({after[key] for key, label in before.items() if label == "w7"}) == 7


def test_the_header_goes_before_the_body_and_without_either_load_decides() -> None:
    workers = ready_workers(8)
    policy = ConsistentHashing("x-routing-key", "user", random.Random(1))
    in_body = RouteFacts(1, keys={"user": "a"})
    both = RouteFacts(1, headers={"x-routing-key": "b"}, keys={"user": "a"})
    assert rank(policy, workers, in_body) == rank(policy, workers, with_key("a"))
    assert rank(policy, workers, both) == rank(policy, workers, with_key("b"))
    workers[5].waiting_tokens = -1
    ranking = policy.rank(workers, RouteFacts(1))
    assert (ranking.reason, ranking.workers[0].label) == ("no_key", "w5")


def test_equal_keys_of_two_tenants_are_two_keys() -> None:
    workers = ready_workers(64)
    policy = ConsistentHashing("x-routing-key")
    assert rank(policy, workers, with_key("a", "one")) != rank(policy, workers, with_key("a", "two"))


def of(ids: list[int]) -> RouteFacts:
    return RouteFacts(len(ids), TokenIds.of(ids))


def test_prompts_with_the_same_beginning_share_a_worker() -> None:
    workers = ready_workers(8)
    policy = PrefixHash(prefix_tokens=100)
    start = prompt(1, 100)
    assert len({rank(policy, workers, of([*start, *prompt(seed, 50)]))[0] for seed in range(20)}) == 1
    assert len({rank(policy, workers, of([*prompt(seed, 99), *prompt(0, 50)]))[0] for seed in range(50)}) == 8


@pytest.mark.parametrize(
    ("running", "others", "passed_over"),
    [
        (10, 0, False),  # over 1.25 x the mean, but not 10 more than it
        (14, 0, True),
        (110, 100, False),  # 10 over the mean nearly, and not 1.25 times it
        (200, 100, True),
    ],
)
def test_a_worker_that_runs_too_much_is_passed_over(running: int, others: int, *, passed_over: bool) -> None:
    workers = ready_workers(4)
    policy = PrefixHash()
    facts = of(prompt(1, 300))
    order = policy.rank(workers, facts).workers
    for worker in workers:
        worker.running = others
    order[0].running = running
    ranking = policy.rank(workers, facts)
    assert (ranking.reason == "passed_over") is passed_over
    assert ranking.workers[0] is order[1 if passed_over else 0]


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


def session(clock: Clock, key: bytes = KEY, *, cookie: bool = False) -> Session:
    tokens = SessionTokens(key, 60, clock)
    return Session(tokens, "x-session-token", 60, cookie=cookie, rng=random.Random(1))


def token_of(policy: Session, worker: object, tenant: str = "") -> str:
    ((_, value),) = policy.answer_headers(worker, RouteFacts(1, tenant=tenant))  # type: ignore[arg-type]
    return value


def came_with(token: str, tenant: str = "") -> RouteFacts:
    return RouteFacts(1, headers={"x-session-token": token}, tenant=tenant)


def test_a_session_stays_with_its_worker_in_every_process_with_the_key() -> None:
    clock = Clock()
    workers = ready_workers(8)
    for worker in workers:
        token = token_of(session(clock), worker)
        worker.waiting_tokens = 99_999
        ranking = session(clock).rank(workers, came_with(token))
        assert (ranking.reason, ranking.workers[0]) == ("session", worker)
        assert sorted(each.label for each in ranking.workers) == sorted(each.label for each in workers)


def test_a_session_whose_worker_cannot_serve_fails_over_to_the_least_loaded() -> None:
    clock = Clock()
    workers = ready_workers(3)
    token = token_of(session(clock), workers[0])
    workers[1].waiting_tokens = 5
    ranking = session(clock).rank(workers[1:], came_with(token))
    assert (ranking.reason, ranking.workers[0].label) == ("failover", "w2")


def test_no_address_is_in_a_token() -> None:
    import base64

    worker = ready_workers(1)[0]
    raw = base64.urlsafe_b64decode(token_of(session(Clock()), worker) + "==")
    assert b"10.0" not in raw
    assert bytes((10, 0, 0, 0)) not in raw


def _changed(token: str) -> list[str]:
    return [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token) - 1)]


def test_a_token_that_was_changed_anywhere_is_no_session() -> None:
    clock = Clock()
    workers = ready_workers(3)
    policy = session(clock)
    for forged in [*_changed(token_of(policy, workers[0])), "", "x", "ü", "=" * 39, "A" * 10_000]:
        assert policy.rank(workers, came_with(forged)).reason == "no_session", forged


def test_a_token_is_good_until_its_time_for_its_tenant_and_its_key() -> None:
    clock = Clock()
    workers = ready_workers(3)
    token = token_of(session(clock), workers[0], "one")
    assert session(clock).rank(workers, came_with(token, "one")).reason == "session"
    assert session(clock).rank(workers, came_with(token, "two")).reason == "no_session"
    assert session(clock, b"another key of 16").rank(workers, came_with(token, "one")).reason == "no_session"
    clock.now_s += 61
    assert session(clock).rank(workers, came_with(token, "one")).reason == "no_session"


def test_a_session_in_a_cookie() -> None:
    workers = ready_workers(3)
    policy = session(Clock(), cookie=True)
    ((name, value),) = policy.answer_headers(workers[2], RouteFacts(1))
    assert name == "set-cookie"
    pair, *attributes = value.split("; ")
    assert attributes == ["Max-Age=60", "Path=/", "HttpOnly", "SameSite=Lax"]
    facts = RouteFacts(1, headers={"cookie": f"a=b; {pair}; c=d"})
    assert policy.rank(workers, facts).workers[0] is workers[2]
    assert policy.rank(workers, RouteFacts(1, headers={"cookie": "a=b"})).reason == "no_session"


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        SessionTokens(b"too short", 60)


def test_the_client_gets_the_token_of_the_worker_that_served_after_a_retry() -> None:
    clock = Clock()
    bench = Bench(session(clock))
    reservation = bench.pool.reserve(RouteFacts(10))
    other = next(worker for worker in bench.workers if worker is not reservation.worker)
    reservation.served_by(other.address)
    ((_, token),) = reservation.answer_headers()
    assert session(clock).rank(bench.workers, came_with(token)).workers[0] is other


def test_buckets_part_prompts_by_length_so_that_all_have_as_many_tokens() -> None:
    chance = random.Random(1)
    bench = Bench(Bucket(rng=random.Random(1)), workers=4)
    lengths = [int(chance.paretovariate(1.2) * 100) for _ in range(3000)]
    by_worker: dict[str, list[int]] = {worker.label: [] for worker in bench.workers}
    for number, length in enumerate(lengths):
        bench.now_s += 1.0
        reservation = bench.pool.reserve(RouteFacts(length))
        if number >= 1000:
            by_worker[reservation.worker.label].append(length)
        reservation.settle()
    for short, long in ((0, 1), (1, 2), (2, 3)):
        # The ranges move with the traffic, so ends touch.
        ours, theirs = sorted(by_worker[f"w{short}"]), sorted(by_worker[f"w{long}"])
        assert ours[len(ours) * 9 // 10] <= theirs[len(theirs) // 10] * 1.3
    # Without the few longest ones, which are a bucket each.
    tokens = [sum(length for length in each if length < 50_000) for each in by_worker.values()]
    assert max(tokens) < 2.5 * min(tokens)


def test_a_bucket_that_is_too_full_gives_to_the_least_loaded() -> None:
    bench = Bench(Bucket(balance_factor=1.5, balance_tokens=100, rng=random.Random(1)), workers=2)
    for length in (10, 1000) * 20:
        bench.pool.reserve(RouteFacts(length)).settle()
    bench.now_s += 10
    own = bench.pool.reserve(RouteFacts(10)).worker
    own.waiting_tokens = 5000
    assert bench.pool.reserve(RouteFacts(10)).worker is not own
    assert bench.rules[-1] == "balance"


def test_prompts_of_one_length_use_all_buckets() -> None:
    bench = Bench(Bucket(rng=random.Random(1)), workers=4)
    for _ in range(50):
        bench.now_s += 1.0
        bench.pool.reserve(RouteFacts(100)).settle()
    bench.now_s += 10.0
    assert len({bench.pool.reserve(RouteFacts(100)).worker.label for _ in range(4)}) == 4
