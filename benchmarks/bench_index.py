"""What the prefix index costs: time for a prompt, memory for a block, the longest turn of the loop.

Run: python benchmarks/bench_index.py [--json FILE]
Rows are measured each in a process of its own, so that memory is what the row needs. Times of turns are wall time of
the event loop's callbacks, with CPU time of its thread beside them, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from extproc.routing import blocks
from extproc.routing.index import PrefixIndex, Slot, Sweeper
from extproc.token_ids import TokenIds

BLOCK_TOKENS = 16
WORKERS = 96
LONG_TOKENS = 240_000
USUAL_TOKENS = 12_000
FULL = 5_000_000  # blocks
MIB = 1 << 20

Row = dict[str, Any]


def row(name: str, unit: str, ours: float, bar: float | None = None, **more: float) -> Row:
    """One figure; `bar` is what it must not exceed."""
    return {"name": name, "unit": unit, "ours": ours, "bar": bar, "met": None if bar is None else ours <= bar, **more}


def new_chain(count: int) -> array[int]:
    """A prompt's hashes that nothing shares."""
    return array("Q", os.urandom(8 * count))


def new_ids(count: int, chance: random.Random) -> TokenIds:
    """A prompt of a vocabulary of 128,000."""
    return TokenIds.of(chance.choices(range(128_000), k=count))


def resident_bytes() -> int:
    """Of this process, now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_slots(index: PrefixIndex) -> list[Slot]:
    """One for each worker, with room for all that a row sends it."""
    return [index.open(f"worker-{number}", 0, 0, FULL) for number in range(WORKERS)]


def fill(index: PrefixIndex, slots: list[Slot], count: int) -> None:
    """Prompts on all workers, half of the blocks by events, half as guesses, as time allows in the background."""
    length = USUAL_TOKENS // BLOCK_TOKENS
    for number in range(count // length):
        slot = slots[number % len(slots)]
        if number % 2:
            index.stored(slot, new_chain(length))
        else:
            index.add(slot, new_chain(length))
        index.sweep(0.0002)
    while index.sweep():
        pass


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of wall time."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def prompts() -> Iterator[Row]:
    """Hash and match in an index of 5 million blocks, each prompt for the first time since it was stored."""
    index = PrefixIndex()
    slots = open_slots(index)
    root = blocks.root("model", BLOCK_TOKENS)
    chance = random.Random(1)
    known: dict[int, list[TokenIds]] = {LONG_TOKENS: [], USUAL_TOKENS: []}
    for tokens, count in ((LONG_TOKENS, 10), (USUAL_TOKENS, 40)):
        for _ in range(count):
            ids = new_ids(tokens, chance)
            hashes = blocks.chain(ids, root, BLOCK_TOKENS)
            for number, slot in enumerate(slots):  # each holds more of it than the one before
                index.stored(slot, hashes[: len(hashes) * (number + 1) // len(slots)])
                index.add(slot, hashes[: len(hashes) * (len(slots) - number) // len(slots)])
            known[tokens].append(ids)
    fill(index, slots, FULL)
    for tokens, name, bar in ((LONG_TOKENS, "240k", 4.0), (USUAL_TOKENS, "12k", None)):
        hashing, both = [], []
        for ids in known[tokens]:
            hashing.append(timed(partial(blocks.chain, ids, root, BLOCK_TOKENS)))
            found: list[int] = []

            def look(ids: TokenIds = ids, found: list[int] = found) -> None:
                match = index.match(blocks.chain(ids, root, BLOCK_TOKENS), slots)
                found += len(match.precise), len(match.guess)

            both.append(timed(look))
            assert found == [WORKERS, WORKERS]
        yield row(f"hash-{name}", "ms", median(hashing))
        yield row(f"hash-match-{name}", "ms", median(both), bar, longest=max(both))
    unknown = [new_ids(LONG_TOKENS, chance) for _ in range(10)]
    times = [timed(lambda: index.match(blocks.chain(ids, root, BLOCK_TOKENS), slots)) for ids in unknown]  # noqa: B023
    yield row("hash-match-240k-unknown", "ms", median(times), longest=max(times))
    chains = [new_chain(USUAL_TOKENS // BLOCK_TOKENS) for _ in range(100)]
    yield row("add-12k", "ms", median([timed(partial(index.add, slots[0], one)) for one in chains]))


def memory() -> Iterator[Row]:
    """Resident memory of 5 million blocks, and the most while they came."""
    index = PrefixIndex()
    slots = open_slots(index)
    before = resident_bytes()
    fill(index, slots, FULL)
    used = resident_bytes() - before
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    yield row("memory-5m-blocks", "MiB", used / MIB, 1024, most=most / MIB, blocks=index.blocks)
    yield row("memory-million-tokens", "MiB", used / MIB / (index.blocks * BLOCK_TOKENS / 1e6))


class Turns:
    """The longest turns of a loop whose every callback goes through `run`."""

    def __init__(self) -> None:
        self.wall_ms = self.cpu_ms = 0.0

    def run(self, call: Callable[[], object]) -> None:
        """One turn."""
        wall, cpu = time.perf_counter(), time.thread_time()
        call()
        self.cpu_ms = max(self.cpu_ms, (time.thread_time() - cpu) * 1e3)
        self.wall_ms = max(self.wall_ms, (time.perf_counter() - wall) * 1e3)


class _Timed(PrefixIndex):
    """Its sweeps are turns, too."""

    turns: Turns

    def sweep(self, budget_s: float = 0.001) -> bool:
        more: list[bool] = []
        self.turns.run(lambda: more.append(super(_Timed, self).sweep(budget_s)))
        return more[0]


async def _grow(index: PrefixIndex, slots: list[Slot], turns: Turns, count: int) -> None:
    """Prompts in turns of their own, one in twenty with 240,000 tokens, their blocks as a guess and by events."""
    number = 0
    while index.blocks < count:
        hashes = new_chain((LONG_TOKENS if number % 20 == 0 else USUAL_TOKENS) // BLOCK_TOKENS)
        slot = slots[number % len(slots)]
        number += 1

        def request(hashes: array[int] = hashes, slot: Slot = slot) -> None:
            index.match(hashes, slots)
            index.add(slot, hashes)

        turns.run(request)
        await asyncio.sleep(0)
        for start in range(0, len(hashes), 128):  # a chunk of prefill has 2,048 tokens
            turns.run(partial(index.stored, slot, hashes[start : start + 128]))
        await asyncio.sleep(0.002)


async def _turns() -> list[Row]:
    sweeper = Sweeper(asyncio.get_running_loop())
    index = _Timed(sweeper._wake)
    sweeper._indexes.append(index)
    growing = index.turns = Turns()
    slots = open_slots(index)
    slots[0].kv_blocks = 1000  # turns its ring all the time
    await _grow(index, slots, growing, FULL)
    large = slots[1]
    for _ in range(100):
        index.stored(large, new_chain(10_000))
    while index.sweep():
        pass
    clearing = index.turns = Turns()
    clearing.run(lambda: index.clear(large))
    began = time.perf_counter()
    seconds = 0.0
    while index._precise.retired or index._guess.retired:
        await _grow(index, slots, clearing, index.blocks + 1)
        seconds = time.perf_counter() - began
    sweeper.close()
    return [
        row("longest-turn-growing", "ms", growing.cpu_ms, 5.0, wall=growing.wall_ms),
        row("longest-turn-clearing", "ms", clearing.cpu_ms, 5.0, wall=clearing.wall_ms, swept_after_s=seconds),
    ]


def turns() -> Iterator[Row]:
    """The longest turn while the index grows to 5 million blocks, and while a worker with a million is cleared."""
    yield from asyncio.run(_turns())


def events() -> Iterator[Row]:
    """The index's and the hashes' part of an event with two blocks, in an index of 5 million blocks."""
    index = PrefixIndex()
    slots = open_slots(index)
    fill(index, slots, FULL)
    root = blocks.root("model", BLOCK_TOKENS)
    chance = random.Random(1)
    messages = [chance.choices(range(128_000), k=2 * BLOCK_TOKENS) for _ in range(20_000)]
    began = time.thread_time()
    for number, ids in enumerate(messages):
        index.stored(slots[number % WORKERS], blocks.extend(root, TokenIds.of(ids).varints, BLOCK_TOKENS))
    yield row("event-hash-and-store", "us", (time.thread_time() - began) / len(messages) * 1e6)


PARTS = {"prompts": prompts, "memory": memory, "turns": turns, "events": events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", type=Path, default=Path("build/bench-index.json"))
    parser.add_argument("--part", choices=PARTS, help="only this one, in this process, as JSON on the output")
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(list(PARTS[arguments.part]())))
        return
    rows: list[Row] = []
    for part in PARTS:
        command = [sys.executable, __file__, "--part", part]
        for one in json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout):
            rows.append(one)
            known = ("name", "unit", "ours", "bar", "met")
            more = ", ".join(f"{key} {value:.2f}" for key, value in one.items() if key not in known)
            bar = "" if one["bar"] is None else f"bar {one['bar']:g}: {'met' if one['met'] else 'MISSED'}"
            print(f"{one['name']:<26}{one['ours']:>9.2f} {one['unit']:<4} {bar:<16} {more}".rstrip(), flush=True)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
