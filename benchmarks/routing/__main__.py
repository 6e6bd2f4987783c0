"""`make bench-routing`: time to first token of real traffic, through this gateway and SMG, on simulated engines.

    make bench-routing                                      load 1.0, five contenders, about fifteen minutes
    make bench-routing ARGS=--full                          everything, about two hours
    make bench-routing ARGS='--minutes 2 --contenders ttft smg'
    make bench-routing ARGS='--scenario kill --contenders ttft smg-events'
    make bench-routing TRACE=/path/to/conversation_trace.jsonl

Figures are model time: the engines' clock runs --speed-up times faster than the wall's. Rows go to
build/bench-routing.json, where those of other settings stay, and every run's figures to build/bench-routing-runs.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from benchmarks.gateway import cpu
from benchmarks.routing import prompts, report, trace
from benchmarks.routing.contenders import Contender
from benchmarks.routing.figures import Figures, Setting, figures, quantile
from benchmarks.routing.load import LoadResult, load
from benchmarks.routing.prompts import Bodies
from benchmarks.routing.set_ups import SPEED_SEED, SPEED_SPREAD, Fleet, Running, SetUps, add_worker
from benchmarks.routing.trace import Request, Scenario, TraceError
from extproc.cli.errors import CommandError
from extproc.cli.processes import run
from extproc.simulator.speeds import spread_speeds

WORKERS = 8
PREFILL_TOKENS_PER_S = 8_000.0
_KILLED = 3
_DRAIN_MODEL_S = 600.0  # for the last answers
_WARM_UP = 32
_WARM_UP_TOKENS = 400
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: each contender in each setting."""

    settings: Sequence[Setting]
    contenders: Sequence[Contender]
    ideal: bool


def main() -> int:
    """Returns the exit status: 1 if there is no trace or something did not start, not for a missed bar."""
    options = _parser().parse_args()
    try:
        requests = trace.read(options.trace, options.minutes)
    except TraceError as error:
        print(f"bench-routing: {error}", file=sys.stderr)
        return 1
    plan = Plan(_settings(options), options.contenders, not options.no_ideal)
    print(f"{len(requests)} requests in {options.minutes:g} minutes of {options.trace}")
    print(f"runs take about {_estimate_s(plan) / 60:.0f} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="extproc-bench-") as folder:
        (Path(folder) / "logs").mkdir()
        try:
            run(lambda _: _Bench(Path(folder), options.smg, options.output).run(plan, requests), Path(folder, "logs"))
        except CommandError as error:
            print(f"bench-routing: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return _EXIT_INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench-routing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=Path("../shared/traces"), help="the trace's file or its folder")
    parser.add_argument("--minutes", type=float, default=20.0, help="of the trace (20)")
    parser.add_argument("--loads", type=float, nargs="+", default=[1.0], help="timestamps are divided by these (1.0)")
    parser.add_argument("--speed-up", type=float, default=8.0, help="model time / wall time (8)")
    parser.add_argument("--kv-tokens", type=int, default=2_000_000, help="KV cache of each worker (2000000)")
    parser.add_argument("--scenario", type=Scenario, default=Scenario.TRACE, help=", ".join(Scenario))
    parser.add_argument(
        "--contenders", type=Contender, nargs="+", default=list(Contender), metavar="NAME", help=", ".join(Contender)
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="loads 0.6, 1.0 and 1.5, then 1.0 with 0.5 M KV tokens, at half the speed-up, and every scenario",
    )
    parser.add_argument("--no-ideal", action="store_true", help="leave out the simulation that share_of_ideal needs")
    parser.add_argument("--smg", type=Path, required=True, help="SMG's executable")
    parser.add_argument("--output", type=Path, default=Path("build/bench-routing.json"), help="file for the rows")
    return parser


def _settings(options: argparse.Namespace) -> list[Setting]:
    base = Setting(1.0, options.kv_tokens, options.speed_up, options.minutes, options.scenario)
    if not options.full:
        return [replace(base, load=each) for each in options.loads]
    return [
        base,
        replace(base, load=0.6),
        replace(base, load=1.5),
        replace(base, kv_tokens=500_000),
        replace(base, speed_up=options.speed_up / 2),
        *(replace(base, scenario=each) for each in Scenario if each is not Scenario.TRACE),
    ]


def _estimate_s(plan: Plan) -> float:
    around_s = 15.0  # starting, and the last answers
    return sum(each.minutes * 60 / each.load / each.speed_up + around_s for each in plan.settings) * len(
        plan.contenders
    )


class _Bench:
    def __init__(self, folder: Path, smg: Path, output: Path) -> None:
        self._folder = folder
        self._set_ups = SetUps(folder, smg)
        self._output = output
        self._words = prompts.words(self._set_ups.tokenizer)
        self._made: tuple[Scenario, list[Request], Bodies] | None = None

    async def run(self, plan: Plan, requests: Sequence[Request]) -> None:
        """Everything, with a table at the end."""
        done: list[Figures] = []
        try:
            for setting in plan.settings:
                group: list[Figures] = []
                for contender in plan.contenders:
                    group.append(await self._measure(contender, setting, requests))
                    print(report.table(group[-1:]), flush=True)
                    runs = self._output.with_name(f"{self._output.stem}-runs.json")
                    report.write_json([group[-1].as_json()], runs, ("setting", "contender"))
                share = await asyncio.to_thread(self._ideal_share, setting, requests) if plan.ideal else None
                report.write_json(report.rows(setting, group, share), self._output, ("name",))
                done += group
        finally:
            if done:
                print(report.heading())
                print(report.table(done), flush=True)
            if self._output.exists():
                print(*report.at_half_the_speed(json.loads(self._output.read_text())), sep="\n")

    def _ideal_share(self, setting: Setting, requests: Sequence[Request]) -> float | None:
        from benchmarks.routing.ideal import ideal  # the gateway's code: nothing else here needs it

        outcome = ideal(trace.vary(requests, setting.scenario), setting, WORKERS)
        if outcome is None:
            return None
        share = outcome.cached_tokens / outcome.prompt_tokens
        times = sorted(outcome.ttft_s)
        print(
            f"{setting.name} simulated, ttft with true queues and caches: mean {sum(times) / len(times):.2f}, "
            f"p99 {quantile(times, 0.99):.2f}, cached {share:.3f}",
            flush=True,
        )
        return share

    def _traffic(self, scenario: Scenario, requests: Sequence[Request]) -> tuple[list[Request], Bodies]:
        """The requests of a scenario, and their bytes: the last ones are kept."""
        if self._made is None or self._made[0] is not scenario:
            if self._made is not None:
                self._made[2].close()
            started = time.perf_counter()
            varied = trace.vary(requests, scenario)
            file = self._folder / "requests.bin"
            file.unlink(missing_ok=True)
            self._made = (scenario, varied, prompts.build(varied, self._words, file))
            size = file.stat().st_size / 1e6
            print(f"{scenario}: {size:.0f} MB of requests in {time.perf_counter() - started:.0f} s", flush=True)
        return self._made[1:]

    async def _measure(self, contender: Contender, setting: Setting, requests: Sequence[Request]) -> Figures:
        varied, bodies = await asyncio.to_thread(self._traffic, setting.scenario, requests)
        fleet = Fleet(WORKERS, setting.kv_tokens, PREFILL_TOKENS_PER_S, setting.speed_up)
        pace = setting.load * setting.speed_up
        due_s = [request.at_s / pace for request in varied]
        output_tokens = [request.output_tokens for request in varied]
        async with self._set_ups.running(contender, fleet, extra=setting.scenario is Scenario.ADD) as running:
            await self._warm_up(running)
            pids = [*running.gateway_pids, running.engines.pid]
            before = [cpu.used_s(pid) for pid in pids]
            turn = asyncio.create_task(_turn(setting, running, due_s[-1] / 2))
            sending = load(running.port, bodies, due_s, output_tokens, _DRAIN_MODEL_S / setting.speed_up)
            try:
                # A loop and a thread of its own, so that its CPU can be told.
                result: LoadResult = await asyncio.to_thread(uvloop.run, sending)
            finally:
                turn.cancel()
            used = [cpu.used_s(pid) - start for pid, start in zip(pids, before, strict=True)]
            totals = (await running.engines.order(do="totals"))["totals"]
            if running.extra is not None:
                totals += (await running.extra.order(do="totals"))["totals"]
            if turn.done() and not turn.cancelled() and turn.exception() is not None:
                raise CommandError(f"{setting.name} {contender}: {turn.exception()}")
        speeds = [*spread_speeds(WORKERS, SPEED_SPREAD, SPEED_SEED), 1.0][: len(totals)]
        made = figures(contender, setting, result, totals, speeds, PREFILL_TOKENS_PER_S, used[:-1], used[-1])
        if made.mistake:
            print(f"  {contender}: {made.failed}, first: {made.mistake}", flush=True)
        return made

    async def _warm_up(self, running: Running) -> None:
        """Connections are made and every part has run once, with prompts that no traffic has."""
        wire = prompts.warm_up(_WARM_UP, self._words, _WARM_UP_TOKENS)
        due_s = [number * 0.05 for number in range(_WARM_UP)]
        result = await asyncio.to_thread(uvloop.run, load(running.port, wire, due_s, [4] * _WARM_UP, 30.0))
        wrong = [outcome.status for outcome in result.outcomes if not outcome.ok]
        if wrong:
            raise CommandError(f"{running.contender} does not answer: {wrong[0]}: {result.first_mistake}")


async def _turn(setting: Setting, running: Running, after_s: float) -> None:
    """What happens in the middle of a scenario."""
    await asyncio.sleep(after_s)
    if setting.scenario is Scenario.KILL:
        await running.engines.order(do="kill", engine=_KILLED)
    elif setting.scenario is Scenario.ADD:
        await add_worker(running)


if __name__ == "__main__":
    sys.exit(main())
