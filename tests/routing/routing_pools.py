"""A pool of ready workers, on a clock that tests move."""

from __future__ import annotations

import random
from collections.abc import Sequence

from extproc.routing.facts import RouteFacts
from extproc.routing.index import PrefixIndex
from extproc.routing.membership import Membership
from extproc.routing.policies import Policy
from extproc.routing.pool import Pool
from extproc.routing.prefixes import Prefixes
from extproc.routing.worker import Worker, WorkerState
from extproc.token_ids import TokenIds

BLOCK = 16


def ready_workers(count: int) -> list[Worker]:
    workers = [Worker(f"w{number}", f"10.0.0.{number}:1") for number in range(count)]
    for worker in workers:
        worker.state = WorkerState.READY
    return workers


class Bench:
    """A pool, its clock and its prefix index."""

    def __init__(self, policy: Policy, workers: int = 3, kv_tokens: int = 100_000) -> None:
        self.now_s = 100.0
        self.workers = ready_workers(workers)
        members = Membership(self.workers)
        self.pool = Pool("p", (), policy, 2, members, clock=lambda: self.now_s)
        self.rules: list[str] = []
        self.pool.decided = self.rules.append
        self.index = PrefixIndex()
        if policy.prefixes is not None:
            self.pool.prefixes = Prefixes(self.index, BLOCK, policy.prefixes, kv_tokens)
            members.observe(self.pool.prefixes)

    def facts(self, ids: Sequence[int], **more: object) -> RouteFacts:
        return RouteFacts(len(ids), TokenIds.of(ids), **more)  # type: ignore[arg-type]

    def holds(self, worker: Worker, ids: Sequence[int]) -> None:
        """By its KV events the worker holds these tokens."""
        assert self.pool.prefixes is not None
        facts = self.facts([*ids, 0])
        self.pool.prefixes.look_up(facts, self.workers)
        slot = self.pool.prefixes.slot(worker)
        assert slot is not None
        assert facts.hashes is not None
        self.index.stored(slot, facts.hashes)

    def guess(self, worker: Worker, ids: Sequence[int]) -> int:
        """Tokens of such a prompt that the worker is thought to hold by what was sent there."""
        assert self.pool.prefixes is not None
        facts = self.facts(ids)
        self.pool.prefixes.look_up(facts, self.workers)
        return facts.guess.get(worker, 0)


def prompt(seed: int, tokens: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000) for _ in range(tokens)]
