"""Policies that look at neither load nor caches."""

from __future__ import annotations

import random
from collections.abc import Sequence

from extproc.routing.facts import RouteFacts
from extproc.routing.policies.base import Policy, Ranking
from extproc.routing.worker import Worker


class RoundRobin(Policy):
    """Each in turn, in the order of the configuration."""

    name = "round_robin"
    reasons = ("turn",)

    def __init__(self) -> None:
        self._next = 0

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """The next in turn, then those after it."""
        start = self._next % len(candidates)
        self._next = start + 1
        return Ranking([*candidates[start:], *candidates[:start]], "turn")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """Its turn."""
        return f"next in turn of {len(ranking.workers)}"


class Random(Policy):
    """Any, evenly."""

    name = "random"
    reasons = ("chance",)

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """A random order."""
        return Ranking(self._rng.sample(candidates, len(candidates)), "chance")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """Chance."""
        return f"any of {len(ranking.workers)}"


class Passthrough(Policy):
    """The first that can serve, in the order of the configuration; the others are there for when it cannot."""

    name = "passthrough"
    reasons = ("first",)

    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """As they are."""
        return Ranking(list(candidates), "first")

    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """Its place."""
        return f"first of {len(ranking.workers)}"
