"""Policies that look at load alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import attrgetter

from extproc.routing.facts import RouteFacts
from extproc.routing.policies.base import Policy, Ranking
from extproc.routing.worker import Worker

load_of = attrgetter("waiting_tokens", "running")
"""Prompt tokens dispatched and not yet answered by a first token, then requests dispatched and not yet ended."""


def by_load(candidates: Sequence[Worker], rng: random.Random) -> list[Worker]:
    """Lightest first, equals at random: several processors that see the same must not all take the same."""
    # A random start and a stable sort break ties at random for a quarter of what shuffling costs.
    start = int(rng.random() * len(candidates))
    ranked = [*candidates[start:], *candidates[:start]]
    ranked.sort(key=load_of)
    return ranked


def in_words(worker: Worker) -> str:
    """Its load."""
    return f"{worker.waiting_tokens} prompt tokens waiting, {worker.running} running"


class LeastLoad(Policy):
    """The one with the fewest prompt tokens dispatched and not yet answered, then with the fewest running requests."""

    name = "least_load"
    reasons = ("least_load",)

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """By load, lightest first."""
        return Ranking(by_load(candidates, self._rng), "least_load")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """Its load before this request."""
        return f"least load of {len(ranking.workers)}: {in_words(ranking.workers[0])}"


class PowerOfTwo(Policy):
    """The lighter of two that chance picks: nearly as even as `least_load`, and many processors do not herd."""

    name = "power_of_two"
    reasons = ("lighter", "only_one")

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """The two, then the others in a random order."""
        ranked = self._rng.sample(candidates, len(candidates))
        if len(ranked) == 1:
            return Ranking(ranked, "only_one")
        if load_of(ranked[1]) < load_of(ranked[0]):
            ranked[0], ranked[1] = ranked[1], ranked[0]
        return Ranking(ranked, "lighter")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """Both loads."""
        chosen, *others = ranking.workers
        if not others:
            return "the only one"
        return f"{in_words(chosen)}, against {in_words(others[0])} on {others[0].label}"
