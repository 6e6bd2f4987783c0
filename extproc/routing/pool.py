"""Pools of interchangeable workers, and the models that lead to them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from extproc.ir import ErrorInfo, ErrorKind, ModelCard, RequestError
from extproc.routing.admission import Admission
from extproc.routing.facts import RouteFacts
from extproc.routing.membership import Membership
from extproc.routing.policies import Policy, Ranking
from extproc.routing.prefixes import Prefixes
from extproc.routing.reservation import Candidate, Decision, Reservation
from extproc.routing.worker import Worker

_MOST_CANDIDATES = 8
"""Candidates shown in a decision; a pool may have hundreds."""

_RETRY_AFTER_S = 2.0
"""Two rounds of health checks at their default interval would be 4 s; clients back off further by themselves."""


def _ignore(*_: object) -> None:
    """Nobody counts."""


class Pool:
    """Workers of one engine protocol, one tokenizer and one set of models."""

    def __init__(
        self,
        name: str,
        workers: Sequence[Worker],
        policy: Policy,
        retries: int,
        members: Membership | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`retries`: how many more workers Envoy may try; so many stand behind the chosen one.

        `members`: in place of `workers`, where these come and go.
        """
        self.name = name
        self._most_destinations = 1 + retries
        self.members = members or Membership(workers)
        self.policy = policy
        self.clock = clock
        self.admission: Admission[Reservation] | None = None
        """Set where there are caps. Then `reserve` is called by it, when there is room."""
        self.prefixes: Prefixes | None = None
        """Set where the policy wants them, and once the size of the engines' blocks is known."""
        self.decided: Callable[[str], None] = _ignore
        """Told the reason of every decision."""
        self.estimate_seen: Callable[[float, float], None] = _ignore
        """Told of every estimate, and what came: seconds to the first token."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Those of now, in any state."""
        return self.members.workers

    def candidates(self) -> Sequence[Worker]:
        """Workers that may be chosen now."""
        members = self.members
        return members.thinned() if members.warming else members.candidates

    def reserve(self, facts: RouteFacts) -> Reservation:
        """Choose a worker and put the request's load on it. Raises RequestError (UNAVAILABLE) without candidates."""
        return self._reserve(facts, explain=False)[0]

    def reserve_explained(self, facts: RouteFacts) -> tuple[Reservation, Decision]:
        """`reserve`, with the decision in words; building it costs more than deciding."""
        reservation, decision = self._reserve(facts, explain=True)
        assert decision is not None
        return reservation, decision

    def _reserve(self, facts: RouteFacts, *, explain: bool) -> tuple[Reservation, Decision | None]:
        candidates = self.candidates()
        admission = self.admission
        if admission is not None and candidates:
            # Not those in their slow start alone may have room.
            candidates = admission.with_room(candidates, facts.prompt_tokens) or admission.with_room(
                self.members.candidates, facts.prompt_tokens
            )
        if not candidates:
            raise no_worker(self.name)
        facts.now_s = self.clock()
        prefixes = self.prefixes
        if prefixes is not None:
            prefixes.look_up(facts, candidates)
        ranking = self.policy.rank(candidates, facts)
        self.decided(ranking.reason)
        decision = self._decision(ranking, facts) if explain else None
        workers = ranking.workers
        return Reservation(self, workers[0], self._destinations(workers), facts, ranking.estimate_s), decision

    def _decision(self, ranking: Ranking, facts: RouteFacts) -> Decision:
        workers = ranking.workers
        chosen = workers[0]
        shown = []
        for worker in workers[:_MOST_CANDIDATES]:
            estimate_s = self.policy.estimate_s(worker, facts)
            shown.append(
                Candidate(
                    worker.label,
                    worker.waiting_tokens,
                    worker.running,
                    facts.cached_tokens(worker),
                    int(worker.load.backlog_tokens(facts.now_s)),
                    None if estimate_s is None else round(estimate_s * 1e3, 1),
                )
            )
        return Decision(
            self.name,
            chosen.label,
            chosen.address,
            self.policy.name,
            ranking.reason,
            self.policy.explain(ranking, facts),
            facts.prompt_tokens,
            tuple(shown),
            max(len(workers) - _MOST_CANDIDATES, 0),
        )

    def _destinations(self, ranked: Sequence[Worker]) -> str:
        """The chosen one and those for retries, as Envoy takes them."""
        chosen = ranked[0]
        if chosen.rank is not None:
            return chosen.address  # the request names a rank, which another engine may not have
        if self.members.trials:
            ranked = [chosen, *(worker for worker in ranked[1:] if not worker.on_trial)]
        return ",".join([worker.address for worker in ranked[: self._most_destinations]])


def no_worker(pool: str) -> RequestError:
    """Workers may exist, but none can serve now: 503 and never 404, which clients do not retry."""
    return RequestError(
        ErrorInfo(
            kind=ErrorKind.UNAVAILABLE,
            message=f"No worker of pool {pool} can take this request now. Try again shortly.",
            code="no_worker_available",
            retry_after_s=_RETRY_AFTER_S,
        )
    )


class ModelTarget:
    """A pool's share of a model."""

    __slots__ = ("pool", "weight")

    def __init__(self, pool: Pool, weight: int) -> None:
        self.pool = pool
        self.weight = weight


class ModelTable:
    """Model names and aliases to pools."""

    def __init__(
        self,
        targets: dict[str, list[ModelTarget]],
        cards: Iterable[ModelCard],
        rng: random.Random | None = None,
    ) -> None:
        """`targets`: every name and alias; at least one target each."""
        self._targets = targets
        self.cards = tuple(cards)
        self._rng = rng or random.Random()  # noqa: S311 - no secret depends on it

    def pool_for(self, model: str) -> Pool:
        """Raises RequestError (MODEL_NOT_FOUND)."""
        targets = self._targets.get(model)
        if targets is None:
            raise RequestError(
                ErrorInfo(
                    kind=ErrorKind.MODEL_NOT_FOUND,
                    message=f"The model `{model[:256]}` does not exist.",
                    param="model",
                    code="model_not_found",
                )
            )
        if len(targets) == 1:
            return targets[0].pool
        # A share that no worker can serve now falls to the others.
        able = [target for target in targets if target.weight and target.pool.candidates()]
        if not able:
            return targets[0].pool
        return self._rng.choices(able, [target.weight for target in able])[0].pool
