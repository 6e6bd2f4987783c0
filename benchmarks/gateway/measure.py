"""Runs rows: starts what they need, sends the requests to each set-up in turn, reads the CPU, reports."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from benchmarks.gateway import cpu, report, text
from benchmarks.gateway.load import LoadError, LoadResult, load
from benchmarks.gateway.report import CACHES, Figures
from benchmarks.gateway.requests import Requests, build
from benchmarks.gateway.rows import Row, SetUpName
from benchmarks.gateway.set_ups import SetUp, SetUps
from extproc.cli.errors import CommandError
from extproc.cli.processes import run

_RUNS = 3
_LIMIT_S = 8.0  # of sending, in one run
_ALL_LIMIT_S = 120.0  # where all requests have to be sent
_WARM_UP_SHARE = 0.15
_WORDS = Path("build/bench/words.txt")
_COLUMN = {
    SetUpName.OURS: "ours",
    SetUpName.OURS_GRPCIO: "ours",
    SetUpName.OURS_TWO: "ours",
    SetUpName.OURS_TWO_SESSIONS: "ours",
    SetUpName.SMG: "smg",
    SetUpName.SMG_L0: "smg",
    SetUpName.ENVOY_SMG: "envoy_smg",
    SetUpName.ENVOY_SMG_L0: "envoy_smg",
    SetUpName.SMG_CACHES: "smg" + CACHES,
    SetUpName.ENVOY_SMG_CACHES: "envoy_smg" + CACHES,
}


def main(program: str, description: str | None, all_rows: Sequence[Row], output: Path) -> int:
    """Returns the exit status: 1 if something did not start or answered wrongly, not for a missed bar."""
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in all_rows]
    usual = [row.name for row in all_rows if not row.only_asked]
    parser.add_argument("--rows", nargs="+", metavar="ROW", choices=names, default=usual, help=", ".join(names))
    parser.add_argument("--runs", type=int, default=_RUNS, help=f"of each row and set-up ({_RUNS})")
    parser.add_argument("--scale", type=float, default=1.0, help="requests of a run, relative to the default")
    parser.add_argument("--step-ms", type=float, help="the engines' time per token in all streams, for comparison")
    parser.add_argument("--smg", type=Path, required=True, help="SMG's executable")
    parser.add_argument("--output", type=Path, default=output, help="file for the figures")
    options = parser.parse_args()
    if options.runs < 1 or options.scale <= 0:
        parser.error("--runs and --scale must be positive")
    rows = [
        replace(
            row,
            requests=max(int(row.requests * options.scale), row.connections),
            step_s=row.step_s if options.step_ms is None or not row.stream else options.step_ms / 1e3,
        )
        for row in all_rows
        if row.name in options.rows
    ]
    _WORDS.parent.mkdir(parents=True, exist_ok=True)
    words = text.load(_WORDS)
    print(f"text: {len(words)} words, {text.distinct(words)} distinct", flush=True)
    figures: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="extproc-bench-") as folder:
        (Path(folder) / "logs").mkdir()
        try:
            run(
                lambda processes: _measure(
                    SetUps(processes, Path(folder), options.smg), rows, options.runs, words, figures
                ),
                Path(folder, "logs"),
            )
        except (CommandError, LoadError) as error:
            print(f"{program}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    print(report.table(figures))
    report.write_json(figures, options.output)
    return 0


async def _measure(set_ups: SetUps, rows: Sequence[Row], runs: int, words: Sequence[str], done: list[Figures]) -> None:
    groups: dict[str, list[Figures]] = {}
    for row in rows:
        groups.setdefault(row.beside or row.name, []).append(Figures(row))
    for group in groups.values():
        started = time.perf_counter()
        for figures in group:
            await _warm_up(set_ups, figures.row, words)
        for number in range(runs):
            for figures in group:
                await _run(set_ups, figures, words, number)
        done += group
        print(f"{', '.join(figures.row.name for figures in group)}: {time.perf_counter() - started:.0f} s", flush=True)


async def _warm_up(set_ups: SetUps, row: Row, words: Sequence[str]) -> None:
    requests = build(row, words, "warm-up", max(int(row.requests * _WARM_UP_SHARE), row.connections))
    for name in row.set_ups:
        await _send(row, await set_ups.get(name, row.model, row.step_s), requests)


async def _run(set_ups: SetUps, figures: Figures, words: Sequence[str], number: int) -> None:
    """One run of a row: the same requests to each set-up in turn."""
    row = figures.row
    requests = build(row, words, str(number), row.requests)
    if row.min_distinct_words:
        figures.distinct_words = max(figures.distinct_words, requests.distinct_words)
    results = [
        await _measure_one(row, name, await set_ups.get(name, row.model, row.step_s), requests, figures)
        for name in row.set_ups
    ]
    _compare(results, figures)


async def _measure_one(row: Row, name: SetUpName, set_up: SetUp, requests: Requests, figures: Figures) -> LoadResult:
    before = [cpu.used_s(pid) for pid in set_up.pids]
    result = await _send(row, set_up, requests)
    units = result.completed * row.units_per_request
    used = [(cpu.used_s(pid) - start) * 1e6 / units for pid, start in zip(set_up.pids, before, strict=True)]
    values = figures.values
    column = _COLUMN[name]
    if column == "ours":
        envoy, processor = used
        values["envoy"].append(envoy)
        values["processor"].append(processor)
        values["ours"].append(processor if row.processor_only else envoy + processor)
    else:
        values[column].append(sum(used))
    shown = " + ".join(f"{part:.1f}" for part in used)
    print(f"  {row.name} {name}: {shown} {row.unit}, {result.completed} in {result.elapsed_s:.1f} s", flush=True)
    return result


async def _send(row: Row, set_up: SetUp, requests: Requests) -> LoadResult:
    limit_s = _ALL_LIMIT_S if row.all_requests else _LIMIT_S
    sending = load(set_up.port, requests.wire, connections=row.connections, tokens=row.tokens, limit_s=limit_s)
    # A loop of its own: asyncio's would cost the gateways more of the machine.
    result = await asyncio.to_thread(uvloop.run, sending)
    if row.all_requests and result.completed < len(requests.wire):
        raise LoadError(f"{row.name}: only {result.completed} requests in {limit_s:.0f} s")
    return result


def _compare(results: Sequence[LoadResult], figures: Figures) -> None:
    """Every request must have had the same number of prompt tokens in all set-ups."""
    for counts in zip(*(result.prompt_tokens for result in results), strict=True):
        known = {count for count in counts if count is not None}
        if len(known) > 1:
            figures.prompt_tokens_agree = False
    sent = [count for count in results[0].prompt_tokens if count is not None]
    figures.prompt_tokens = sum(sent) / len(sent)
