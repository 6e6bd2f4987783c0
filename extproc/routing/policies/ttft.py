"""The default policy: the worker that gives the first token first, counting what the choice costs others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

from extproc.routing.facts import RouteFacts
from extproc.routing.pace import Pace
from extproc.routing.policies.base import Policy, PrefixUse, Ranking
from extproc.routing.worker import Worker

_TYPICAL_EVERY_S = 1.0
_SHARE_FADES = 0.995  # of what older prompts weigh in how much of prompts is found in caches


class Ttft(Policy):
    """The least of: the wait for prompts before this one, its own uncached prompt, and a price for evicting others.

    Computing what another worker holds, in a cache that is full, evicts as many blocks, and somebody will miss them as
    often as prompts are found in caches at all. The price is the time that the uncached prompt takes, times that share,
    how full the worker's cache is, and `eviction_price`.

    Nobody is pinned by a shared block, as a wait longer than computing the block is worse than computing it. A hot
    prefix spreads for the same reason, an idle worker is used for it, and a conversation stays where its cache is
    while the wait there is shorter than computing it anew.
    """

    name = "ttft"
    reasons = ("cached", "partly_cached", "spread", "uncached")
    prefixes = PrefixUse()

    def __init__(
        self,
        *,
        eviction_price: float = 1.0,
        near: float = 0.02,
        rng: random.Random | None = None,
    ) -> None:
        """`near`: costs within this share of the least are equal, and chance decides."""
        self._eviction_price = eviction_price
        self._near = near
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it
        self._typical_s = float("-inf")
        self._seen: Sequence[Worker] = ()
        self._unmeasured = True
        self._prompt_tokens = 1.0
        self._found_tokens = 0.0

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """By cost, least first. Hot: about a microsecond a candidate."""
        now_s = facts.now_s
        if self._unmeasured or candidates is not self._seen or now_s - self._typical_s > _TYPICAL_EVERY_S:
            self._typical_s = now_s
            self._seen = candidates
            self._unmeasured = _share_pace(candidates, now_s)
        prompt_tokens = facts.prompt_tokens
        precise, guess = facts.precise, facts.guess
        evict_price = self._eviction_price * self._found_tokens / self._prompt_tokens
        costs: list[tuple[float, int]] = []
        most = 0
        for number, worker in enumerate(candidates):
            load = worker.load
            held = precise.get(worker, 0)
            thought = guess.get(worker, 0)
            if thought > held:
                held = thought
            if held > most:
                most = held
            pace = load.pace
            price = 1.0 + evict_price * load.kv_fill
            tokens = load.backlog_tokens(now_s) + (prompt_tokens - held) * price
            costs.append((pace.base_s + tokens / pace.tokens_per_s, number))
        costs.sort()
        near = costs[0][0] * (1.0 + self._near)
        equals = 1
        while equals < len(costs) and costs[equals][0] <= near:
            equals += 1
        if equals > 1:
            at = int(self._rng.random() * equals)
            costs[0], costs[at] = costs[at], costs[0]
        self._prompt_tokens = self._prompt_tokens * _SHARE_FADES + prompt_tokens
        workers = [candidates[number] for _, number in costs]
        chosen = workers[0]
        held = facts.cached_tokens(chosen)
        self._found_tokens = self._found_tokens * _SHARE_FADES + held
        reason = self._reason(held, most, facts)
        return Ranking(workers, reason, self.estimate_s(chosen, facts))

    def _reason(self, held: int, most: int, facts: RouteFacts) -> str:
        if not most:
            return "uncached"
        if held < most:
            return "spread"
        return "cached" if 2 * held > facts.prompt_tokens else "partly_cached"

    def estimate_s(self, worker: Worker, facts: RouteFacts) -> float:
        """Until its first token, without the price."""
        load = worker.load
        pace = load.pace
        uncached = facts.prompt_tokens - facts.cached_tokens(worker)
        return pace.base_s + (load.backlog_tokens(facts.now_s) + uncached) / pace.tokens_per_s

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """What the estimate is made of, and what the most cached prefix would have cost."""
        chosen = ranking.workers[0]
        words = self._words(chosen, facts)
        best = max(ranking.workers, key=facts.cached_tokens)
        if facts.cached_tokens(best) <= facts.cached_tokens(chosen):
            return words
        return f"{words}; {best.label} holds more: {self._words(best, facts)}"

    def _words(self, worker: Worker, facts: RouteFacts) -> str:
        load = worker.load
        held = facts.cached_tokens(worker)
        return (
            f"first token in {self.estimate_s(worker, facts) * 1e3:.0f} ms: {load.backlog_tokens(facts.now_s):.0f} "
            f"tokens before it, {facts.prompt_tokens - held} of its own to compute and {held} cached, at "
            f"{load.pace.tokens_per_s:.0f} tokens/s"
        )


def _share_pace(workers: Sequence[Worker], now_s: float) -> bool:
    """Who is not measured yet is expected to be like the others, so that none looks better or worse for it.

    Returns whether there is any such.
    """
    paces = []
    for worker in workers:
        meter = worker.load.meter
        meter.forget_old(now_s)
        if meter.pace is not None:
            paces.append(meter.pace)
    if paces:
        typical = Pace(median([pace.tokens_per_s for pace in paces]), median([pace.base_s for pace in paces]))
        for worker in workers:
            worker.load.expected = typical
    return len(paces) < len(workers)
