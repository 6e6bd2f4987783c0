"""Policies by which the same key leads to the same worker."""

from __future__ import annotations

import random
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from extproc.routing.facts import RouteFacts
from extproc.routing.policies.base import Policy, Ranking
from extproc.routing.policies.loaded import by_load, in_words
from extproc.routing.worker import Worker
from extproc.token_ids import WIDTH


class Rendezvous:
    """An order of workers for each key, the same in every process.

    The first of them is the one with the highest hash of itself and the key. So when a worker leaves, only its own keys
    move, and spread over all others; a ring of virtual nodes does that less evenly.
    """

    def __init__(self) -> None:
        self._seeds: dict[tuple[str, int | None], int] = {}

    def order(self, key: bytes, workers: Sequence[Worker]) -> list[Worker]:
        """Hot: 0.3 us a worker."""
        key_hash = xxh3_64_intdigest(key)
        key_bytes = key_hash.to_bytes(8, "little")
        seeds = self._seeds
        scores = []
        for number, worker in enumerate(workers):
            name = (worker.address, worker.rank)
            seed = seeds.get(name)
            if seed is None:
                seed = seeds[name] = xxh3_64_intdigest(f"{worker.address} {worker.rank}".encode())
            scores.append((xxh3_64_intdigest(key_bytes, seed), number))
        if len(seeds) > 4 * len(workers) + 64:
            seeds.clear()  # of workers that have left
        scores.sort(reverse=True)
        return [workers[number] for _, number in scores]


class ConsistentHashing(Policy):
    """By a key that the client sends, in a header or in the body."""

    name = "consistent_hashing"
    reasons = ("key", "no_key")

    def __init__(self, header: str | None, body_key: str | None = None, rng: random.Random | None = None) -> None:
        """The header goes before the field of the body."""
        self._header = header
        self._body_key = body_key
        self.headers = (header,) if header else ()
        self._rendezvous = Rendezvous()
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def _key(self, facts: RouteFacts) -> str:
        key = facts.headers.get(self._header, "") if self._header else ""
        return key or (facts.keys.get(self._body_key, "") if self._body_key else "")

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """The key's order; by load without one. Tenants' keys are apart."""
        key = self._key(facts)
        if not key:
            return Ranking(by_load(candidates, self._rng), "no_key")
        return Ranking(
            self._rendezvous.order(f"{facts.tenant}\n{key}".encode("utf-8", "surrogatepass"), candidates), "key"
        )

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """By what."""
        if ranking.reason == "no_key":
            return f"the request has no key; least load of {len(ranking.workers)}: {in_words(ranking.workers[0])}"
        return f"by the key, among {len(ranking.workers)}"


class PrefixHash(Policy):
    """By the first tokens of the prompt, passing over workers that run too much."""

    name = "prefix_hash"
    reasons = ("prefix", "passed_over")

    def __init__(self, *, prefix_tokens: int = 256, load_factor: float = 1.25, load_margin: int = 10) -> None:
        """A worker runs too much over both `load_factor` x the mean and `load_margin` + the mean, in requests."""
        self._prefix_bytes = prefix_tokens * WIDTH
        self._load_factor = load_factor
        self._load_margin = load_margin
        self._rendezvous = Rendezvous()

    def _ceiling(self, candidates: Sequence[Worker]) -> float:
        mean = sum([worker.running for worker in candidates]) / len(candidates)
        return max(self._load_factor * mean, self._load_margin + mean)

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """The prefix's order, those that run too much last."""
        namespace = facts.namespace.encode("utf-8", "surrogatepass")
        order = self._rendezvous.order(namespace + b"\n" + facts.ids.varints[: self._prefix_bytes], candidates)
        ceiling = self._ceiling(candidates)
        first = order[0]
        order.sort(key=lambda worker: worker.running > ceiling)
        return Ranking(order, "prefix" if order[0] is first else "passed_over")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """By what, and the ceiling."""
        chosen = ranking.workers[0]
        return (
            f"by the first {min(self._prefix_bytes // WIDTH, facts.prompt_tokens)} tokens; {chosen.running} running, "
            f"passed over are workers over {self._ceiling(ranking.workers):.1f}"
        )
