"""What a run gave, in model time: times to first token, caches, load, and what it cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.routing.contenders import Contender
from benchmarks.routing.load import LoadResult
from benchmarks.routing.trace import Scenario

_STEP_S = 0.02  # an own prefill takes at least one step of an engine: dividing by less would say nothing
CPU_BAR_CORES = 0.5
_LATE_BAR_S = 0.05  # model time, mean over steps: a few percent of the times that are measured
_LATEST_BAR_S = 1.5


@dataclass(frozen=True, slots=True)
class Setting:
    """What one row of runs has in common."""

    load: float  # relative: timestamps are divided by it
    kv_tokens: int
    speed_up: float
    minutes: float
    scenario: Scenario = Scenario.TRACE

    @property
    def name(self) -> str:
        """As in the rows: trace-1.0, trace-1.0-kv0.5M, kill-1.0, trace-1.0-x4."""
        kv = "" if self.kv_tokens == 2_000_000 else f"-kv{self.kv_tokens / 1e6:g}M"
        slower = "" if self.speed_up == 8 else f"-x{self.speed_up:g}"
        return f"{self.scenario}-{self.load:.1f}{kv}{slower}"


@dataclass(slots=True)
class Figures:
    """One contender in one setting. Seconds are model time, CPU is in cores (CPU seconds a second of wall time)."""

    contender: Contender
    setting: Setting
    requests: int
    failed: dict[str, int]  # requests by what went wrong
    mean_s: float  # of requests that got a first token; the next ones count those without one as infinite
    p50_s: float
    p90_s: float
    p99_s: float
    slowdown_p99: float  # time to first token / own uncached prefill
    cached_share: float  # of the prompt tokens of answered requests, as the engines say
    busy: list[float]  # by worker: share of its prefill rate that was used, up to the last answer
    gateway_cores: list[float]  # Envoy and processor, or SMG
    engines_cores: float
    client_cores: float
    client_late_p99_ms: float  # wall time
    steps_late_ms: float  # engines' steps, wall time: mean and most
    steps_latest_ms: float
    elapsed_s: float  # wall time
    most_in_flight: int
    mistake: str = field(default="")

    @property
    def spread(self) -> float:
        """Standard deviation / mean of the workers' busy shares."""
        mean = sum(self.busy) / len(self.busy)
        if not mean:
            return 0.0
        return math.sqrt(sum((share - mean) ** 2 for share in self.busy) / len(self.busy)) / mean

    @property
    def disturbed(self) -> bool:
        """The machine did not keep up with the engines' model time: the run says little."""
        late_s, latest_s = (each / 1e3 * self.setting.speed_up for each in (self.steps_late_ms, self.steps_latest_ms))
        return late_s > _LATE_BAR_S or latest_s > _LATEST_BAR_S

    @property
    def cores(self) -> float:
        """Of the whole gateway."""
        return sum(self.gateway_cores)

    def as_json(self) -> dict[str, Any]:
        """All of it; what is infinite is null."""
        values = asdict(self)
        values["setting"] = self.setting.name
        values["spread"] = self.spread
        values["disturbed"] = self.disturbed
        return {key: None if value == math.inf else value for key, value in values.items()}


def figures(
    contender: Contender,
    setting: Setting,
    result: LoadResult,
    totals: Sequence[dict[str, Any]],
    speeds: Sequence[float],
    prefill_tokens_per_s: float,
    gateway_cpu_s: Sequence[float],
    engines_cpu_s: float,
) -> Figures:
    """From what the client and the engines counted."""
    speed_up = setting.speed_up
    outcomes = result.outcomes
    begun = [outcome.first_s * speed_up for outcome in outcomes if outcome.first_s is not None]
    never = [math.inf] * (len(outcomes) - len(begun))
    answered = [outcome for outcome in outcomes if outcome.ok]
    times = sorted(begun + never)
    # What broke off after its first token has no usage that would tell its own prefill.
    slowdowns = sorted(
        [
            (outcome.first_s or 0.0)
            * speed_up
            / max((outcome.prompt_tokens - outcome.cached_tokens) / prefill_tokens_per_s, _STEP_S)
            for outcome in answered
        ]
        + never
    )
    prompt_tokens = sum(outcome.prompt_tokens for outcome in answered)
    elapsed_s = result.elapsed_s
    return Figures(
        contender=contender,
        setting=setting,
        requests=len(outcomes),
        failed=dict(Counter(outcome.status for outcome in outcomes if not outcome.ok)),
        mean_s=sum(begun) / max(len(begun), 1),
        p50_s=quantile(times, 0.5),
        p90_s=quantile(times, 0.9),
        p99_s=quantile(times, 0.99),
        slowdown_p99=quantile(slowdowns, 0.99),
        cached_share=sum(outcome.cached_tokens for outcome in answered) / max(prompt_tokens, 1),
        busy=[
            each["computed_tokens"] / (prefill_tokens_per_s * speed * elapsed_s * speed_up)
            for each, speed in zip(totals, speeds, strict=True)
        ],
        gateway_cores=[cpu_s / elapsed_s for cpu_s in gateway_cpu_s],
        engines_cores=engines_cpu_s / elapsed_s,
        client_cores=result.cpu_s / elapsed_s,
        client_late_p99_ms=quantile(sorted(outcome.late_s for outcome in outcomes), 0.99) * 1e3,
        steps_late_ms=sum(each["late_ms"] * each["steps"] for each in totals)
        / max(sum(each["steps"] for each in totals), 1),
        steps_latest_ms=max(each["latest_ms"] for each in totals),
        elapsed_s=elapsed_s,
        most_in_flight=result.most_in_flight,
        mistake=result.first_mistake,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan
