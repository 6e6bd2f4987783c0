"""Policies: each ranks the candidates for one request, best first. The first is chosen, the next are for retries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol

from extproc.routing.worker import Worker

_load = attrgetter("waiting_tokens", "running")


class Policy(Protocol):
    """How a worker is chosen. `rank` is called for every request: it must be cheap and change nothing outside."""

    name: str

    def rank(self, candidates: Sequence[Worker], prompt_tokens: int) -> list[Worker]:
        """All candidates (at least one), best first."""
        ...

    def reason(self, chosen: Worker, candidates: Sequence[Worker]) -> str:
        """In a few words, why this worker: for the operator who asks. Before the request counts as its load."""
        ...


class RoundRobin:
    """Each in turn, in the order of the configuration."""

    name = "round_robin"

    def __init__(self) -> None:
        self._next = 0

    def rank(self, candidates: Sequence[Worker], prompt_tokens: int) -> list[Worker]:
        """The next in turn, then those after it."""
        start = self._next % len(candidates)
        self._next = start + 1
        return [*candidates[start:], *candidates[:start]]

    def reason(self, chosen: Worker, candidates: Sequence[Worker]) -> str:
        """Its turn."""
        return f"next in turn of {len(candidates)}"


class Random:
    """Any, evenly."""

    name = "random"

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def rank(self, candidates: Sequence[Worker], prompt_tokens: int) -> list[Worker]:
        """A random order."""
        return self._rng.sample(candidates, len(candidates))

    def reason(self, chosen: Worker, candidates: Sequence[Worker]) -> str:
        """Chance."""
        return f"any of {len(candidates)}"


class LeastLoad:
    """The one with the fewest prompt tokens dispatched and not yet answered, then with the fewest running requests.

    Ties are broken at random: several processors that see the same must not all take the same.
    """

    name = "least_load"

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def rank(self, candidates: Sequence[Worker], prompt_tokens: int) -> list[Worker]:
        """By load, lightest first."""
        # A random start and a stable sort break ties at random for a quarter of what shuffling costs.
        start = int(self._rng.random() * len(candidates))
        ranked = [*candidates[start:], *candidates[:start]]
        ranked.sort(key=_load)
        return ranked

    def reason(self, chosen: Worker, candidates: Sequence[Worker]) -> str:
        """Its load before this request."""
        return (
            f"least load of {len(candidates)}: {chosen.waiting_tokens} prompt tokens waiting, {chosen.running} running"
        )


POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (LeastLoad, RoundRobin, Random)}
"""By the name that a configuration uses."""
