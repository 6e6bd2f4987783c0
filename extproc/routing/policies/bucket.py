"""Workers by the length of prompts, so that short ones do not wait for long ones."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from extproc.routing.facts import RouteFacts
from extproc.routing.policies.base import Policy, Ranking
from extproc.routing.policies.loaded import by_load, in_words
from extproc.routing.worker import Worker


class Bucket(Policy):
    """Each worker has a range of prompt lengths, by its place among the candidates.

    The ranges cut the latest prompts so that each worker has as many tokens as the others.
    """

    name = "bucket"
    reasons = ("bucket", "balance")

    def __init__(
        self,
        *,
        window: int = 1000,
        interval_s: float = 5.0,
        balance_factor: float = 2.0,
        balance_tokens: int = 16_384,
        rng: random.Random | None = None,
    ) -> None:
        """A bucket's worker is passed over when more tokens wait there than both balances allow."""
        self._lengths: deque[int] = deque(maxlen=window)
        self._interval_s = interval_s
        self._balance_factor = balance_factor
        self._balance_tokens = balance_tokens
        self._bounds: list[int] = []
        self._workers = 0
        self._set_s = float("-inf")
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """The worker of the prompt's length, the others by load."""
        count = len(candidates)
        self._lengths.append(facts.prompt_tokens)
        if facts.now_s - self._set_s >= self._interval_s or count != self._workers:
            self._set_s = facts.now_s
            self._workers = count
            self._bounds = _bounds(sorted(self._lengths), count)
        ranked = by_load(candidates, self._rng)
        bounds = self._bounds
        first = bisect_left(bounds, facts.prompt_tokens)
        last = first
        while last < len(bounds) and bounds[last] == facts.prompt_tokens:
            last += 1  # prompts of one length fill several buckets
        own = next(worker for worker in ranked if worker in candidates[first : last + 1])
        mean = sum([worker.waiting_tokens for worker in candidates]) / count
        if own.waiting_tokens > max(self._balance_factor * mean, self._balance_tokens + mean):
            return Ranking(ranked, "balance")
        ranked.remove(own)
        return Ranking([own, *ranked], "bucket")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """The ranges."""
        chosen = ranking.workers[0]
        if ranking.reason == "balance":
            return f"the bucket's worker has too much to do; least load: {in_words(chosen)}"
        return f"{facts.prompt_tokens} prompt tokens; buckets end at {', '.join(map(str, self._bounds)) or 'no length'}"


def _bounds(lengths: Sequence[int], buckets: int) -> list[int]:
    """The longest prompt of each bucket but the last."""
    total = sum(lengths)
    bounds: list[int] = []
    done = 0
    for length in lengths:
        done += length
        while len(bounds) < buckets - 1 and done * buckets >= total * (len(bounds) + 1):
            bounds.append(length)
    return bounds
