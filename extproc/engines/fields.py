"""What the engines' protocols write alike: log probabilities, and how they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Protocol

from extproc.engines.base import TokenScores

_MOST_LOGPROBS = 20
"""vLLM's limit as it starts without `--max-logprobs`."""


class TopLogProbs(Protocol):
    """The alternatives of one token, in parallel lists."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def values(self) -> Sequence[float]: ...


class OutputLogProbs(Protocol):
    """The message of this name, which each protocol has a copy of."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def token_logprobs(self) -> Sequence[float]: ...
    @property
    def top_logprobs(self) -> Sequence[TopLogProbs]: ...


def logprobs_to_ask(wanted: int) -> int:
    """How many alternatives to ask for, so that the `wanted` likeliest are among them.

    One more, since vLLM counts the sampled token among them, however unlikely it is. Never 0, which MLX takes for none.
    """
    return min(wanted + 1, _MOST_LOGPROBS)


def scores(logprobs: OutputLogProbs) -> list[TokenScores]:
    """Of each token, the alternatives from the likeliest on: vLLM writes the sampled token first."""
    alternatives = [
        sorted(zip(top.token_ids, top.values, strict=False), key=itemgetter(1), reverse=True)
        for top in logprobs.top_logprobs
    ]
    missing = len(logprobs.token_ids) - len(alternatives)
    if missing > 0:
        alternatives.extend([] for _ in range(missing))
    return [
        TokenScores(token_id, value, top)
        for token_id, value, top in zip(logprobs.token_ids, logprobs.token_logprobs, alternatives, strict=False)
    ]
