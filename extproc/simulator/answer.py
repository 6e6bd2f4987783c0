"""From what an engine would say to what one request gets: lengths, eos, stop tokens and strings, biased tokens.

Pure: everything that the answer will be is known before its first token is sent, the scheduler only says when.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.simulator.artifacts import Artifacts
from extproc.simulator.validation import Sampling

_CERTAIN_BIAS = 100.0
"""A token with this bias is always produced; one with its negative never."""


@dataclass(slots=True)
class Answer:
    """The tokens of one sequence, eos and stop tokens included, and why it ends."""

    ids: Sequence[int]
    finish_reason: str  # stop | length
    matched_token_id: int | None = None
    matched_stop_str: str | None = None


def plan(
    said: Sequence[int], sampling: Sampling, room: int, artifacts: Artifacts, *, ignore_stop_strings: bool = False
) -> Answer:
    """`said` is the engine's text without eos, `room` the tokens that fit into the context behind the prompt."""
    limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    ids, ends = _sample(said, sampling, limit, artifacts.eos_ids)
    answer = Answer(ids, "stop" if ends else "length")
    if sampling.stop_token_ids:
        _apply_stop_tokens(answer, sampling)
    if sampling.stop and not ignore_stop_strings:
        _apply_stop_strings(answer, sampling, artifacts)
    return answer


def _sample(said: Sequence[int], sampling: Sampling, limit: int, eos_ids: Sequence[int]) -> tuple[Sequence[int], bool]:
    """The tokens, and whether they end with eos."""
    eos = eos_ids[0] if eos_ids else None
    bias = sampling.logit_bias
    if bias:
        certain = [token for token, value in bias.items() if value >= _CERTAIN_BIAS]
        if certain:
            token = certain[0]
            if token == eos and not sampling.ignore_eos:
                count = min(limit, sampling.min_tokens + 1)
                return [token] * count, count > sampling.min_tokens
            return [token] * limit, False
        never = {token for token, value in bias.items() if value <= -_CERTAIN_BIAS}
        said = [token for token in said if token not in never]
        if eos in never:
            eos = None
    length = len(said)
    if eos is not None and not sampling.ignore_eos and sampling.min_tokens <= length < limit:
        return [*said, eos], True
    if length >= limit:
        return said[:limit], False
    # Nothing may end it yet, so it is said again and again.
    again = said or [0]
    wanted = limit if eos is None or sampling.ignore_eos else min(limit, sampling.min_tokens)
    ids = (list(again) * (wanted // len(again) + 1))[:wanted]
    if wanted < limit and eos is not None:
        return [*ids, eos], True
    return ids, False


def _apply_stop_tokens(answer: Answer, sampling: Sampling) -> None:
    wanted = sampling.stop_token_ids
    ends_with_eos = answer.finish_reason == "stop"
    last = len(answer.ids) - 1
    for position, token in enumerate(answer.ids):
        # eos is looked at before stop tokens, which is why it is never reported as one.
        if token in wanted and position >= sampling.min_tokens - 1 and not (ends_with_eos and position == last):
            answer.ids = answer.ids[: position + 1]
            answer.finish_reason = "stop"
            answer.matched_token_id = token
            return


def _apply_stop_strings(answer: Answer, sampling: Sampling, artifacts: Artifacts) -> None:
    ids = list(answer.ids)
    skip = sampling.skip_special_tokens
    # Text of the first min_tokens tokens stops nothing.
    start = len(artifacts.decode(ids[: sampling.min_tokens], skip_special=skip)) if sampling.min_tokens else 0

    def contains(count: int) -> bool:
        text = artifacts.decode(ids[:count], skip_special=skip)
        return any(text.find(stop, start) >= 0 for stop in sampling.stop)

    if not contains(len(ids)):
        return
    # More tokens never take a stop string away, so the first count that has one is found by halving.
    count = bisect_left(range(1, len(ids) + 1), True, key=contains) + 1
    text = artifacts.decode(ids[:count], skip_special=skip)
    answer.ids = ids[:count]
    answer.finish_reason = "stop"
    answer.matched_token_id = None
    answer.matched_stop_str = next(stop for stop in sampling.stop if text.find(stop, start) >= 0)
