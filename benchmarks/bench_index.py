"""What the prefix index costs: time for a prompt, memory for a block, the longest turn of the loop.

Run: python -m benchmarks.bench_index [--json FILE] [--smg .venvs/smg-1.13.0/bin/smg]
Rows are measured each in a process of its own, so that memory is what the row needs. Times are CPU time of the thread,
which other work on the machine lengthens little; wall time is beside them.
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

from benchmarks.index_smg import bytes_per_million_tokens
from extproc.routing import blocks
from extproc.routing.index import Match, PrefixIndex, Slot, Sweeper
from extproc.token_ids import TokenIds

BLOCK_TOKENS = 16
WORKERS = 96
LONG_TOKENS = 240_000
USUAL_TOKENS = 12_000
FULL = 5_000_000  # blocks
MIB = 1 << 20
PER_TOKENS = "memory-million-tokens"

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


class Times:
    """Of calls, in milliseconds: CPU of the thread, and wall."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def run(self, call: Callable[[], object]) -> None:
        """One more."""
        wall, cpu = time.perf_counter(), time.thread_time()
        call()
        self.cpu.append((time.thread_time() - cpu) * 1e3)
        self.wall.append((time.perf_counter() - wall) * 1e3)

    def row(self, name: str, bar: float | None = None) -> Row:
        """Their medians, and the longest."""
        return row(name, "ms", median(self.cpu), bar, longest=max(self.cpu), wall=median(self.wall))


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
        hashing, both = Times(), Times()
        for ids in known[tokens]:
            hashing.run(partial(blocks.chain, ids, root, BLOCK_TOKENS))
        for ids in known[tokens]:
            found: list[Match] = []
            both.run(lambda: found.append(index.match(blocks.chain(ids, root, BLOCK_TOKENS), slots)))  # noqa: B023
            assert len(found[0].precise) == len(found[0].guess) == WORKERS
        yield hashing.row(f"hash-{name}")
        yield both.row(f"hash-match-{name}", bar)
    unknown = Times()
    for _ in range(10):
        ids = new_ids(LONG_TOKENS, chance)
        unknown.run(lambda: index.match(blocks.chain(ids, root, BLOCK_TOKENS), slots))  # noqa: B023
    yield unknown.row("hash-match-240k-unknown")
    adding = Times()
    for _ in range(100):
        adding.run(partial(index.add, slots[0], new_chain(USUAL_TOKENS // BLOCK_TOKENS)))
    yield adding.row("add-12k")


def memory() -> Iterator[Row]:
    """Resident memory of 5 million blocks, and the most while they came."""
    index = PrefixIndex()
    slots = open_slots(index)
    before = resident_bytes()
    fill(index, slots, FULL)
    used = resident_bytes() - before
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    yield row("memory-5m-blocks", "MiB", used / MIB, 1024, most=most / MIB, blocks=index.blocks)
    yield row(PER_TOKENS, "MiB", used / MIB / (index.blocks * BLOCK_TOKENS / 1e6))


class _Timed(PrefixIndex):
    """Its sweeps are turns, too."""

    turns: Times

    def sweep(self, budget_s: float = 0.001) -> bool:
        more: list[bool] = []
        self.turns.run(lambda: more.append(super(_Timed, self).sweep(budget_s)))
        return more[0]


async def _grow(index: PrefixIndex, slots: list[Slot], turns: Times, count: int) -> None:
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
    growing = index.turns = Times()
    slots = open_slots(index)
    slots[0].kv_blocks = 1000  # turns its ring all the time
    await _grow(index, slots, growing, FULL)
    large = slots[1]
    for _ in range(100):
        index.stored(large, new_chain(10_000))
    while index.sweep():
        pass
    clearing = index.turns = Times()
    clearing.run(lambda: index.clear(large))
    began = time.perf_counter()
    seconds = 0.0
    while index._precise.retired or index._guess.retired:
        await _grow(index, slots, clearing, index.blocks + 1)
        seconds = time.perf_counter() - began
    sweeper.close()
    return [
        row("longest-turn-growing", "ms", max(growing.cpu), 5.0, wall=max(growing.wall)),
        row("longest-turn-clearing", "ms", max(clearing.cpu), 5.0, wall=max(clearing.wall), swept_after_s=seconds),
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


def repeats() -> Iterator[Row]:
    """Match and note a prompt of 12,000 tokens that no worker knows, then one that comes again and again."""
    index = PrefixIndex()
    slots = open_slots(index)
    length = USUAL_TOKENS // BLOCK_TOKENS
    unknown, noted, again = Times(), Times(), Times()
    for number in range(40):
        hashes = new_chain(length)
        unknown.run(partial(index.match, hashes, slots))
        noted.run(partial(index.add, slots[number % WORKERS], hashes))
    for _ in range(3):  # from then on its places are known
        index.match(hashes, slots)
    for _ in range(40):
        again.run(lambda: (index.match(hashes, slots), index.add(slots[0], hashes)))
    yield unknown.row("match-12k-unknown")
    yield noted.row("note-12k-unknown")
    yield again.row("match-note-12k-again")


PARTS = {"prompts": prompts, "repeats": repeats, "memory": memory, "turns": turns, "events": events}


def show(one: Row) -> None:
    """A line for people."""
    more = ", ".join(f"{key} {value:.2f}" for key, value in one.items() if key not in row("", "", 0.0))
    bar = "" if one["bar"] is None else f"bar {one['bar']:g}: {'met' if one['met'] else 'MISSED'}"
    print(f"{one['name']:<26}{one['ours']:>9.2f} {one['unit']:<4} {bar:<16} {more}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--json", type=Path, default=Path("build/bench-index.json"))
    parser.add_argument("--smg", type=Path, default=Path(".venvs/smg-1.13.0/bin/smg"), help="left out if not there")
    parser.add_argument("--part", choices=PARTS, help="only this one, in this process, as JSON on the output")
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(list(PARTS[arguments.part]())))
        return
    rows: list[Row] = []
    for part in PARTS:
        command = [sys.executable, "-m", "benchmarks.bench_index", "--part", part]
        for one in json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout):
            if one["name"] == PER_TOKENS and arguments.smg.exists():
                one["smg"] = asyncio.run(bytes_per_million_tokens(arguments.smg)) / MIB
                one["ratio_smg"] = one["ours"] / one["smg"]
            rows.append(one)
            show(one)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
