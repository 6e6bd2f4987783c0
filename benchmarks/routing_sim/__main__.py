"""`make bench-routing-sim`: time to first token of policies, in discrete-event simulation; the rows that docs show."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.routing.trace import Request, Scenario, TraceError, read, vary
from benchmarks.routing_sim.fleets import many_times
from benchmarks.routing_sim.replay import Fleet, Outcome, Replay
from extproc.routing.policies import CacheAware, LeastLoad, Policy, RoundRobin, Ttft

_WORKERS_OF_TRACE = 8
_SMG_POLL_S = 10.0


@dataclass(frozen=True, slots=True)
class _Contender:
    name: str
    policy: Callable[[random.Random], Policy]
    events: bool = True
    ideal: bool = False
    poll_s: float = 1.0


_CONTENDERS = (
    _Contender("ttft", lambda rng: Ttft(rng=rng)),
    _Contender("ttft, no events", lambda rng: Ttft(rng=rng), events=False),
    _Contender("ttft, ideal", lambda rng: Ttft(rng=rng), ideal=True),
    _Contender("least_load", lambda rng: LeastLoad(rng)),
    _Contender("round_robin", lambda rng: RoundRobin()),
    _Contender("cache_aware", lambda rng: CacheAware(rng=rng), poll_s=_SMG_POLL_S),
    _Contender("cache_aware, no events", lambda rng: CacheAware(rng=rng), events=False, poll_s=_SMG_POLL_S),
)


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    workers: int
    load: float
    kv_tokens: int
    block_tokens: int
    scenario: Scenario = Scenario.TRACE
    minutes: float = 20.0  # of the trace, at most


def _settings() -> Iterator[_Setting]:
    for load in (0.6, 1.0, 1.5):
        yield _Setting(f"8 workers, load {load:g}", 8, load, 2_000_000, 32)
    yield _Setting("8 workers, load 1, KV 0.5 M", 8, 1.0, 500_000, 32)
    yield _Setting("8 workers, load 1, hot prefix", 8, 1.0, 2_000_000, 32, Scenario.HOT_PREFIX)
    yield _Setting("8 workers, load 1, no sharing", 8, 1.0, 2_000_000, 32, Scenario.NO_SHARING)
    yield _Setting("64 workers, load 1", 64, 1.0, 2_000_000, 128)
    yield _Setting("512 workers, load 1, 2 minutes", 512, 1.0, 2_000_000, 512, minutes=2.0)


def main() -> int:
    """Print a table for each setting. Returns 1 where there is no trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, required=True, help="the trace's file or its folder")
    parser.add_argument("--minutes", type=float, default=20.0, help="of the trace, from its start, at most")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for the rows")
    given = parser.parse_args()
    try:
        requests = read(given.trace, given.minutes)
    except TraceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    rows = []
    for setting in _settings():
        if given.only not in setting.name:
            continue
        print(f"\n{setting.name} (simulated)\n", flush=True)
        print("| policy | mean s | p50 s | p90 s | p99 s | cached | busiest ÷ mean | estimate off by s | us/decision |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        some = [request for request in requests if request.at_s < setting.minutes * 60.0]
        traffic = many_times(vary(some, setting.scenario), setting.workers // _WORKERS_OF_TRACE)
        for contender in _CONTENDERS:
            if setting.workers > _WORKERS_OF_TRACE and contender.ideal:
                continue  # it looks into every cache, which takes too long
            row = _run(contender, setting, traffic, given.seed)
            rows.append(row)
            print(f"| {' | '.join(_cells(row))} |", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1))
    return 0


def _run(contender: _Contender, setting: _Setting, traffic: Sequence[Request], seed: int) -> dict[str, object]:
    fleet = Fleet(
        workers=setting.workers,
        kv_tokens=setting.kv_tokens,
        block_tokens=setting.block_tokens,
        events=contender.events,
        poll_s=contender.poll_s,
    )
    replay = Replay(contender.policy(random.Random(seed)), fleet, ideal=contender.ideal)
    began_s = time.perf_counter()
    outcome = replay.run(traffic, setting.load)
    return {
        "setting": setting.name,
        "policy": contender.name,
        **_figures(outcome),
        "decision_us": replay.deciding_s / len(traffic) * 1e6,
        "took_s": time.perf_counter() - began_s,
        "rules": outcome.reasons,
    }


def _figures(outcome: Outcome) -> dict[str, float]:
    times = sorted(outcome.ttft_s)

    def percentile(share: float) -> float:
        return times[min(int(len(times) * share), len(times) - 1)]

    errors = [abs(error_s) for error_s in outcome.errors_s]
    return {
        "mean_s": statistics.fmean(times),
        "p50_s": percentile(0.5),
        "p90_s": percentile(0.9),
        "p99_s": percentile(0.99),
        "cached_share": outcome.cached_tokens / outcome.prompt_tokens,
        "busiest": max(outcome.busy_s) / statistics.fmean(outcome.busy_s),
        "estimate_error_s": statistics.fmean(errors) if errors else float("nan"),
    }


def _cells(row: dict[str, object]) -> Iterator[str]:
    yield str(row["policy"])
    for name in ("mean_s", "p50_s", "p90_s", "p99_s", "cached_share", "busiest"):
        yield f"{row[name]:.3f}"
    error = row["estimate_error_s"]
    yield "–" if error != error else f"{error:.3f}"
    yield f"{row['decision_us']:.0f}"


if __name__ == "__main__":
    sys.exit(main())
