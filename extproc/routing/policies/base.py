"""What every policy is: a ranking of the candidates for one request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from extproc.routing.facts import RouteFacts
from extproc.routing.worker import Worker


class PrefixUse(Struct, frozen=True):
    """What a policy wants of the prefix index."""

    answers: bool = True
    """Generated tokens are noted too, as the next turn of a conversation begins with them."""
    kv_tokens: int | None = None
    """What a worker is thought to hold at most of what was sent to it; None: its KV cache's size."""


class Ranking(Struct, gc=False):
    """The candidates, best first, and why the first is the first."""

    workers: list[Worker]
    reason: str
    """One of the policy's `reasons`."""
    estimate_s: float | None = None
    """Until the first token, if the first worker serves. None: the policy makes no estimate."""


class Policy(ABC):
    """How a worker is chosen. `rank` is called for every request: it must be cheap, and neither waits nor fails."""

    name: ClassVar[str]
    """As configurations write it."""
    reasons: ClassVar[tuple[str, ...]]
    """All that a ranking's reason may be: decisions are counted by them."""
    headers: tuple[str, ...] = ()
    """Request headers that it looks at, in lower case."""
    prefixes: PrefixUse | None = None
    """None: prompts are not hashed for it, and `precise` and `guess` of the facts stay empty."""

    @abstractmethod
    def rank(self, candidates: Sequence[Worker], facts: RouteFacts) -> Ranking:
        """All candidates (at least one), best first. The first is chosen, the next are for retries."""

    @abstractmethod
    def explain(self, ranking: Ranking, facts: RouteFacts) -> str:
        """In a few words, for the operator who asks. Before the request counts as load."""

    def estimate_s(self, worker: Worker, facts: RouteFacts) -> float | None:
        """Until this worker's first token, for the operator who asks. None where the policy makes no estimates."""
        return None

    def answer_headers(self, worker: Worker, facts: RouteFacts) -> tuple[tuple[str, str], ...]:
        """What the client is told beside the answer that the worker gives."""
        return ()
