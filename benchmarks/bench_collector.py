"""Python's garbage collector under load: how long its pauses are and what they cost, by setting.

2,000 exchanges are open and stream; in turn each gets a token, and now and then one ends and a new one begins. At the
end a full collection is forced: the longest pause that a setting allows. Each setting runs in a process of its own, in
the order given and then again, so that drift of the machine shows.

Run: python benchmarks/bench_collector.py
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
from time import perf_counter, thread_time

from in_process import InProcess, Prompts, answer, request

from extproc.supervisor.process import GC_THRESHOLDS

SETTINGS: dict[str, tuple[bool, tuple[int, int, int] | None]] = {
    "Python's own": (False, (700, 10, 10)),
    "frozen": (True, (700, 10, 10)),
    "frozen, 2000/10/10": (True, (2_000, 10, 10)),
    "frozen, 10000/10/10": (True, (10_000, 10, 10)),
    "frozen, 10000/10/1000": (True, (10_000, 10, 1_000)),
    "off": (True, None),
}
OPEN = 2_000
TOKENS = 400_000
TOKENS_EACH = 100


async def measure(setting: str) -> dict[str, float]:
    """Run one setting in this process."""
    # What a processor has loaded and this program has not.
    import extproc.cli.serve
    import extproc.envoyconfig.files
    import extproc.gateway.processor  # noqa: F401

    gateway = await InProcess.load()
    prompts = Prompts()
    bodies = [request(prompts.body(1500)) for _ in range(50)]
    head, *pieces, end = answer(range(1000, 1000 + TOKENS_EACH), 300)
    frozen, thresholds = SETTINGS[setting]
    gc.collect()
    if frozen:
        gc.freeze()
    if thresholds is None:
        gc.disable()
    else:
        gc.set_threshold(*thresholds)
    pauses: list[list[float]] = [[], [], []]
    started = 0.0

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = thread_time()
        else:
            pauses[info["generation"]].append(thread_time() - started)

    gc.callbacks.append(on_collection)

    def begin(number: int) -> object:
        exchange = gateway.exchange()
        for message in bodies[number % len(bodies)]:
            exchange.receive(message)
        exchange.receive(head)
        return exchange

    streams = [begin(number) for number in range(OPEN)]
    at = [number * TOKENS_EACH // OPEN for number in range(OPEN)]
    longest = 0.0
    cpu_started = thread_time()
    for token in range(TOKENS):
        number = token % OPEN
        exchange = streams[number]
        turn = perf_counter()
        exchange.receive(pieces[at[number]])  # type: ignore[attr-defined]
        at[number] += 1
        if at[number] == TOKENS_EACH:
            exchange.receive(end)  # type: ignore[attr-defined]
            exchange.close()  # type: ignore[attr-defined]
            streams[number] = begin(token)
            at[number] = 0
        longest = max(longest, perf_counter() - turn)
    cpu = thread_time() - cpu_started
    gc.callbacks.clear()
    full_started = thread_time()
    garbage = gc.collect()
    full = thread_time() - full_started
    await gateway.aclose()
    return {
        "us_per_token": 1e6 * cpu / TOKENS,
        "gc_percent": 100 * sum(map(sum, pauses)) / cpu,
        "collections": sum(map(len, pauses)),
        "full": len(pauses[2]),
        "forced_ms": 1e3 * full,
        "garbage": garbage,
        "longest_ms": 1e3 * max((max(each, default=0.0) for each in pauses), default=0.0),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=list(SETTINGS), help="only this one, in this process, as JSON")
    setting = parser.parse_args().setting
    if setting:
        print(json.dumps(asyncio.run(measure(setting))))
        return
    print(f"extproc serve uses {GC_THRESHOLDS}, frozen\n")
    print(f"{'setting':22} {'us/token':>9} {'GC':>7} {'runs':>6} {'full':>5} {'longest':>9} {'forced':>9} {'found':>6}")
    for name in [*SETTINGS, *SETTINGS]:
        command = [sys.executable, __file__, "--setting", name]
        found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        print(
            f"{name:22} {found['us_per_token']:9.2f} {found['gc_percent']:6.1f}% {found['collections']:6.0f} "
            f"{found['full']:5.0f} {found['longest_ms']:6.2f} ms {found['forced_ms']:6.2f} ms {found['garbage']:6.0f}"
        )


if __name__ == "__main__":
    main()
