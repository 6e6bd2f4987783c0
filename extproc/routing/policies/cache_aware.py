"""The rules of SMG 1.13's default policy, for those who come from it and for comparison."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import sqrt

from extproc.routing.facts import RouteFacts
from extproc.routing.policies.base import Policy, PrefixUse, Ranking
from extproc.routing.worker import Worker

_LEAST_MARGIN = 4.0  # requests over the mean before a worker can be too loaded
_DEVIATIONS = 2.0  # square roots of the mean over it before it can be


class CacheAware(Policy):
    """The worker with most of the prompt in its cache, unless it runs too many requests for its fleet.

    - Where KV events say that somebody holds the prompt's first block, those who do are holders, by how much they hold.
      Where nobody does, nobody is a holder.
    - Where no worker has KV events, who was sent more than `cache_threshold` of the prompt is a holder.
    - A holder is skipped when its running requests are over `balance_rel` times the mean, and over the mean by
      `balance_abs` or by twice the mean's square root (but at least 4), whichever is less.
    - Without a holder that is left, the worker with the fewest running requests, then the fewest ever sent.
    - Before all that, workers that report `overload_waiting` waiting requests or `overload_kv` of their KV cache in use
      are left out, unless all do.

    Load is counted in requests, whatever their length.
    """

    name = "cache_aware"
    reasons = ("event_hit", "event_miss", "event_spill", "tree_match", "tree_miss", "tree_spill")

    def __init__(
        self,
        *,
        cache_threshold: float = 0.3,
        balance_abs: int = 64,
        balance_rel: float = 1.5,
        overload_waiting: int = 8,
        overload_kv: float = 0.8,
        tree_tokens: int = 67_108_864,
        rng: random.Random | None = None,
    ) -> None:
        """`tree_tokens`: a worker is remembered to have been sent so many."""
        self.prefixes = PrefixUse(answers=False, kv_tokens=tree_tokens)
        self._cache_threshold = cache_threshold
        self._balance_abs = float(balance_abs)
        self._balance_rel = balance_rel
        self._overload_waiting = overload_waiting
        self._overload_kv = overload_kv
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it
        self._sent: dict[str, int] = {}
        self._events_seen = False

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """Holders that are not too loaded, by what they hold; then all others, by load."""
        able = [worker for worker in candidates if not self._overloaded(worker)] or candidates
        self._events_seen = self._events_seen or bool(facts.precise)
        by_events = self._events_seen
        if by_events:
            held = facts.precise
        else:
            least = self._cache_threshold * facts.prompt_tokens
            held = {worker: tokens for worker, tokens in facts.guess.items() if tokens > least}
        ceiling = self._ceiling(candidates)
        holders = [worker for worker in able if worker in held]
        light = [worker for worker in holders if worker.running <= ceiling]
        sent = self._sent
        # Equal holders: less load first, as for the others.
        light.sort(key=lambda worker: (-held[worker], worker.running, sent.get(worker.address, 0)))
        rest = [worker for worker in able if worker not in light]
        start = int(self._rng.random() * len(rest)) if rest else 0
        rest = rest[start:] + rest[:start]
        rest.sort(key=lambda worker: (worker.running, sent.get(worker.address, 0)))
        ranked = light + rest
        if len(ranked) < len(candidates):
            ranked += [worker for worker in candidates if worker not in ranked]
        chosen = ranked[0]
        sent[chosen.address] = sent.get(chosen.address, 0) + 1
        if len(sent) > 2 * len(candidates) + 64:  # some have left
            self._sent = {worker.address: sent.get(worker.address, 0) for worker in candidates}
        branch = ("event_hit" if by_events else "tree_match") if light else "spill" if holders else "miss"
        if branch in ("spill", "miss"):
            branch = ("event_" if by_events else "tree_") + branch
        return Ranking(ranked, branch)

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """What it holds and runs."""
        chosen = ranking.workers[0]
        return (
            f"{chosen.running} running, {facts.cached_tokens(chosen)} of {facts.prompt_tokens} tokens cached; skipped "
            f"are workers over {self._ceiling(ranking.workers):.1f} running"
        )

    def _overloaded(self, worker: Worker) -> bool:
        reported = worker.reported
        if reported is None:
            return False
        waiting, kv_usage = reported.waiting_requests, reported.kv_usage
        return (waiting is not None and waiting >= self._overload_waiting) or (
            kv_usage is not None and kv_usage >= self._overload_kv
        )

    def _ceiling(self, candidates: Sequence[Worker]) -> float:
        """Running requests above which a holder is skipped."""
        count = len(candidates)
        mean = sum([worker.running for worker in candidates]) / count
        # Of counts that chance deals out (Poisson): measured, the spread of the real counts plays no part.
        margin = min(self._balance_abs, max(_DEVIATIONS * sqrt(mean), _LEAST_MARGIN))
        return max(mean + margin, self._balance_rel * mean)
