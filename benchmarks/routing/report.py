"""Figures as a table for people, and as rows with ratios and bars for build/bench-routing.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.routing.contenders import PEERS, Contender
from benchmarks.routing.figures import CPU_BAR_CORES, Figures, Setting

_HEAD = (
    "setting", "by", "mean", "p50", "p90", "p99", "slow p99", "cached", "busy", "spread", "cores", "engines",
    "client", "late", "failed",
)  # fmt: skip
_BARS: Mapping[str, Mapping[str, float]] = {
    "trace-1.0-mean": {"ratio_smg": 0.6, "ratio_blind": 0.8},
    "trace-1.0-p99": {"ratio_smg": 0.75},
    "trace-0.6-mean": {"ratio_smg": 0.75},
}
_SHARE_BARS = {"trace-1.0-cached": 0.9}
_SPEED_BAR = 0.05
_MEASURES = {
    "mean": "mean_s",
    "p50": "p50_s",
    "p90": "p90_s",
    "p99": "p99_s",
    "slowdown-p99": "slowdown_p99",
    "cached": "cached_share",
}


def heading() -> str:
    """What the columns are."""
    return (
        "seconds to the first token in model time; slow p99: p99 of that / own uncached prefill; cached: share of\n"
        "prompt tokens; busy: least and most used prefill rate of a worker, spread: their deviation / mean; cores:\n"
        "the gateway's CPU (Envoy + processor); late: engines' steps, ms of wall time, mean / most; failed: requests\n"
        "!: a gateway over half a core, or a machine that did not keep up: lower --speed-up, or repeat the run"
    )


def table(all_figures: Sequence[Figures]) -> str:
    """One line for each run."""
    lines = [_HEAD, *(_line(figures) for figures in all_figures)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _line(figures: Figures) -> tuple[str, ...]:
    cores = " + ".join(f"{each:.2f}" for each in figures.gateway_cores)
    return (
        figures.setting.name,
        figures.contender.value,
        f"{figures.mean_s:.2f}",
        f"{figures.p50_s:.2f}",
        f"{figures.p90_s:.2f}",
        f"{figures.p99_s:.2f}",
        f"{figures.slowdown_p99:.1f}",
        f"{figures.cached_share:.3f}",
        f"{min(figures.busy):.2f}-{max(figures.busy):.2f}",
        f"{figures.spread:.2f}",
        f"{cores}{'!' if figures.cores > CPU_BAR_CORES else ''}",
        f"{figures.engines_cores:.2f}",
        f"{figures.client_cores:.2f}",
        f"{figures.steps_late_ms:.1f}/{figures.steps_latest_ms:.0f}{'!' if figures.disturbed else ''}",
        str(sum(figures.failed.values())),
    )


def rows(setting: Setting, group: Sequence[Figures], ideal_share: float | None) -> list[dict[str, Any]]:
    """The rows of one setting: a row for each measure, what is missing is null.

    `ideal_share`: cached-token share of the same policy in simulation, where it sees the true queues and caches.
    """
    by_name = {figures.contender: figures for figures in group}
    ours = by_name.get(Contender.TTFT)
    blind = by_name.get(Contender.LEAST_LOAD)
    peers = [by_name[name] for name in PEERS if name in by_name]
    peer = min(peers, key=lambda figures: figures.mean_s) if peers else None
    share = _ratio(ours.cached_share, ideal_share) if ours else None
    made: list[dict[str, Any]] = []
    for measure, attribute in _MEASURES.items():
        value, smg, least = (getattr(each, attribute) if each else None for each in (ours, peer, blind))
        made.append(
            _row(
                f"{setting.name}-{measure}",
                setting,
                group,
                ours=value,
                smg=smg,
                blind=least,
                ratio_smg=_ratio(value, smg),
                ratio_blind=_ratio(value, least),
                share_of_ideal=share,  # of the setting: the same in all of its rows
            )
        )
    return made


def _row(name: str, setting: Setting, group: Sequence[Figures], **values: float | None) -> dict[str, Any]:
    missed = [
        f"{key} {value:.2f} > {bar}"
        for key, bar in _BARS.get(name, {}).items()
        if (value := values[key]) is not None and value > bar
    ]
    share, bar = values["share_of_ideal"], _SHARE_BARS.get(name)
    if share is not None and bar is not None and share < bar:
        missed.append(f"share_of_ideal {share:.2f} < {bar}")
    missed += [
        f"{figures.contender} used {figures.cores:.2f} cores"
        for figures in group
        if figures.cores > CPU_BAR_CORES and name in (*_BARS, *_SHARE_BARS)
    ]
    missed += [f"the machine was late in the run of {figures.contender}" for figures in group if figures.disturbed]
    return {
        "name": name,
        "unit": "" if name.endswith(("slowdown-p99", "cached")) else "s",
        **{key: None if value == math.inf else value for key, value in values.items()},
        "missed": missed,
        "minutes": setting.minutes,
        "speed_up": setting.speed_up,
    }


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other and value != math.inf and other != math.inf else None


def at_half_the_speed(rows_of_file: Sequence[dict[str, Any]]) -> list[str]:
    """How ratios differ where time ran half as fast: what of them is the machine's and not the policy's."""
    by_name = {row["name"]: row for row in rows_of_file}
    lines = []
    for name, row in by_name.items():
        slower = by_name.get(name.replace("-1.0-", f"-1.0-x{row['speed_up'] / 2:g}-"))
        if slower is None or slower is row:
            continue
        for key in ("ratio_smg", "ratio_blind"):
            if row[key] and slower[key]:
                change = slower[key] / row[key] - 1.0
                verdict = "" if abs(change) <= _SPEED_BAR else ", MISSED: within 5 %"
                lines.append(
                    f"{name} {key}: {row[key]:.3f}, at half the speed-up {slower[key]:.3f} ({change:+.1%}{verdict})"
                )
    return lines


def write_json(new: Sequence[dict[str, Any]], file: Path, keys: Sequence[str]) -> None:
    """Put rows into a file; those that it has with the same values of `keys` are replaced, others stay."""
    known = json.loads(file.read_text()) if file.exists() else []
    replaced = {tuple(row[key] for key in keys) for row in new}
    kept = [row for row in known if tuple(row[key] for key in keys) not in replaced]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([*kept, *new], indent=1) + "\n")
