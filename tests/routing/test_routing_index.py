"""The prefix index against sets, whatever order things come in."""

from __future__ import annotations

import asyncio
import os
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.routing.index import PrefixIndex, Slot, Sweeper

_FOREVER = 10**9


@dataclass
class Naive:
    """What a slot holds, as sets."""

    precise: set[int] = field(default_factory=set)
    guess: set[int] = field(default_factory=set)


def leading(hashes: Sequence[int], held: set[int]) -> int:
    """How many of the first are held."""
    return next((at for at, block in enumerate(hashes) if block not in held), len(hashes))


def chain(*, seed: int, length: int) -> array[int]:
    """A chain of its own."""
    chance = random.Random(seed)
    return array("Q", [chance.getrandbits(64) for _ in range(length)])


def swept(index: PrefixIndex) -> None:
    """Until nothing is left to do."""
    while index.sweep():
        pass


CHAINS = [chain(seed=seed, length=length) for seed, length in enumerate((1, 3, 23, 24, 40, 700, 5000))]
CHAINS += [CHAINS[5][:300] + chain(seed=99, length=300), CHAINS[2][:7] + chain(seed=98, length=9)]
_CHAIN = st.integers(0, len(CHAINS) - 1)
_PLACE = st.floats(0, 1)


class Against(RuleBasedStateMachine):
    """Slices that never fill: forgetting by age has tests of its own."""

    @initialize(smallest_cells=st.sampled_from([1 << 5, 1 << 12]))
    def begin(self, smallest_cells: int) -> None:
        self.index = PrefixIndex(smallest_cells=smallest_cells)
        self.naive: dict[Slot, Naive] = {}
        self.open()

    def slot(self, number: int) -> Slot:
        return list(self.naive)[number % len(self.naive)]

    def piece(self, whole: array[int], one: float, other: float) -> array[int]:
        first, last = sorted((int(one * len(whole)), int(other * len(whole))))
        return whole[first:last]

    @rule()
    def open(self) -> None:
        if len(self.naive) < 20:
            self.naive[self.index.open("worker", 0, len(self.naive), _FOREVER)] = Naive()

    @rule(number=st.integers(0), which=_CHAIN, one=_PLACE, other=_PLACE)
    def stored(self, number: int, which: int, one: float, other: float) -> None:
        slot, hashes = self.slot(number), self.piece(CHAINS[which], one, other)
        self.index.stored(slot, hashes)
        self.naive[slot].precise.update(hashes)

    @rule(number=st.integers(0), which=_CHAIN, one=_PLACE, other=_PLACE)
    def removed(self, number: int, which: int, one: float, other: float) -> None:
        slot, hashes = self.slot(number), self.piece(CHAINS[which], one, other)
        self.index.removed(slot, hashes.tolist())
        self.naive[slot].precise.difference_update(hashes)

    @rule(number=st.integers(0), which=_CHAIN)
    def add(self, number: int, which: int) -> None:
        slot, hashes = self.slot(number), CHAINS[which]
        known = self.index.add(slot, hashes)
        while self.index._later:
            self.index._catch_up()
        assert known == leading(hashes, self.naive[slot].guess)
        self.naive[slot].guess.update(hashes)

    @rule(number=st.integers(0), which=_CHAIN, one=_PLACE)
    def drop(self, number: int, which: int, one: float) -> None:
        slot, hashes = self.slot(number), self.piece(CHAINS[which], one, 1.0)
        self.index.drop(slot, hashes)
        self.naive[slot].guess.difference_update(hashes)

    @rule(number=st.integers(0))
    def retire(self, number: int) -> None:
        if len(self.naive) > 1:
            slot = self.slot(number)
            self.index.retire(slot)
            del self.naive[slot]
            assert self.index.match(CHAINS[0], [slot]).precise == {}

    @rule(number=st.integers(0))
    def clear(self, number: int) -> None:
        slot = self.slot(number)
        self.index.clear(slot)
        self.naive[slot] = Naive()

    @rule(number=st.integers(0))
    def clear_precise(self, number: int) -> None:
        slot = self.slot(number)
        self.index.clear_precise(slot)
        self.naive[slot].precise.clear()

    @rule(turns=st.integers(1, 5))
    def sweep(self, turns: int) -> None:
        for _ in range(turns):
            self.index.sweep(budget_s=1e-5)

    @rule()
    def sweep_all(self) -> None:
        swept(self.index)

    @rule(length=st.sampled_from([1, 30, 3000, 20_000]))
    def grow(self, length: int) -> None:
        self.index.stored(self.slot(0), array("Q", os.urandom(8 * length)))

    @invariant()
    def agrees(self) -> None:
        slots = list(self.naive)[::2]  # the others are not eligible
        for hashes in CHAINS:
            match = self.index.match(hashes, slots)
            precise = {slot: count for slot in slots if (count := leading(hashes, self.naive[slot].precise))}
            guess = {slot: count for slot in slots if (count := leading(hashes, self.naive[slot].guess))}
            assert match.precise == precise, "precise"
            assert match.guess == guess, "guess"


Against.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestAgainstSets = Against.TestCase


def test_no_slot_holds_a_prompt_without_blocks() -> None:
    index = PrefixIndex()
    slot = index.open("a", 0, 0, 100)
    index.add(slot, CHAINS[5])
    assert index.match([], [slot]).guess == {}
    assert index.match(CHAINS[5], []).guess == {}


@pytest.mark.parametrize("length", [10, 100])
def test_a_hole_ends_a_match_even_if_more_is_held_behind_it(length: int) -> None:
    index = PrefixIndex()
    slot = index.open("a", 0, 0, 1000)
    index.stored(slot, CHAINS[5][:length])
    index.removed(slot, CHAINS[5][4:5])
    assert index.match(CHAINS[5], [slot]).precise == {slot: 4}
    index.removed(slot, CHAINS[5][0:1])
    assert index.match(CHAINS[5], [slot]).precise == {}


def test_a_retired_slot_is_forgotten_at_once_and_its_successor_starts_empty() -> None:
    index = PrefixIndex()
    old = index.open("a", 0, 1, 1000)
    index.stored(old, CHAINS[5])
    index.add(old, CHAINS[5])
    index.retire(old)
    index.retire(old)
    new = index.open("a", 0, 2, 1000)
    for _ in range(2):
        match = index.match(CHAINS[5], [old, new])
        assert match.precise == match.guess == {}
        swept(index)
        newer = index.open("a", 0, 3, 1000)  # with the bits of the first
        assert index.match(CHAINS[5], [newer]).precise == {}


@pytest.mark.parametrize("call", ["stored", "removed", "add", "drop", "clear", "clear_precise"])
def test_what_comes_late_for_a_retired_slot_changes_nothing(call: str) -> None:
    index = PrefixIndex()
    late, other = index.open("a", 0, 1, 1000), index.open("b", 0, 1, 1000)
    index.stored(other, CHAINS[4])
    index.add(other, CHAINS[4])
    index.retire(late)
    swept(index)
    heir = index.open("c", 0, 1, 1000)
    if call.startswith("clear"):
        getattr(index, call)(late)
    else:
        getattr(index, call)(late, CHAINS[4])
    match = index.match(CHAINS[4], [late, other, heir])
    assert match.precise == match.guess == {other: len(CHAINS[4])}


@pytest.mark.parametrize("piece", [5, 50])
def test_the_guess_forgets_the_oldest_slice_and_what_is_sent_again_stays(piece: int) -> None:
    index = PrefixIndex()
    slot = index.open("a", 0, 0, kv_blocks=piece * 4)
    pieces = [chain(seed=seed, length=piece) for seed in range(30)]
    for at, hashes in enumerate(pieces):
        index.add(slot, hashes)
        index.add(slot, pieces[0])
        swept(index)
        assert index.match(pieces[0], [slot]).guess == {slot: piece}
        held = [number for number in range(1, at + 1) if index.match(pieces[number], [slot]).guess]
        assert held == list(range(held[0], at + 1)) if held else at == 0
        assert len(held) <= 4
        assert len(held) >= min(at, 2)


def test_the_end_of_a_very_long_prompt_follows_in_the_background() -> None:
    index = PrefixIndex()
    slot, gone, other = index.open("a", 0, 0, 10**6), index.open("b", 0, 0, 10**6), index.open("c", 0, 0, 10**6)
    long = chain(seed=1, length=15_000)
    assert [index.add(one, long) for one in (slot, gone, other)] == [0, 0, 0]
    assert 1000 < index.match(long, [slot]).guess[slot] < 15_000
    index.drop(other, long)
    index.add(gone, long)
    index.clear(gone)
    swept(index)
    assert index.match(long, [slot, gone, other]).guess == {slot: 15_000}
    assert index.add(slot, long + CHAINS[3]) == 15_000


def test_ends_of_prompts_do_not_pile_up() -> None:
    index = PrefixIndex()
    slot = index.open("a", 0, 0, 10**9)
    for seed in range(100):
        index.add(slot, chain(seed=seed, length=5000))
    assert len(index._later) < 50


def test_a_worker_s_guess_does_not_age_by_what_others_get() -> None:
    index = PrefixIndex()
    idle, busy = index.open("a", 0, 0, 100), index.open("b", 0, 0, 100)
    index.add(idle, CHAINS[4])
    for seed in range(50):
        index.add(busy, chain(seed=seed, length=60))
        swept(index)
    assert index.match(CHAINS[4], [idle, busy]).guess == {idle: len(CHAINS[4])}


def test_a_slice_is_not_used_again_before_it_is_swept() -> None:
    index = PrefixIndex()
    slot = index.open("a", 0, 0, kv_blocks=40)
    for seed in range(100):  # never swept: the last slice gets larger and larger, nothing comes back
        index.add(slot, chain(seed=seed, length=10))
    held = [seed for seed in range(100) if index.match(chain(seed=seed, length=10), [slot]).guess]
    assert held == list(range(held[0], 100))
    assert held[0] > 0


def test_memory_stays_bounded_while_blocks_come_and_go() -> None:
    index = PrefixIndex()
    slot = index.open("a", 0, 0, 20_000)
    sizes = []
    for _ in range(60):
        hashes = array("Q", os.urandom(8 * 5000))
        index.stored(slot, hashes)
        index.removed(slot, hashes)
        index.add(slot, array("Q", os.urandom(8 * 5000)))
        swept(index)
        sizes.append(index.memory_bytes)
    assert max(sizes[20:]) == max(sizes[:20])


def test_masks_that_no_block_has_are_forgotten() -> None:
    index = PrefixIndex()
    slots = [index.open(str(number), 0, 0, 10**6) for number in range(64)]
    chance = random.Random(1)
    for _ in range(20_000):
        index.stored(chance.choice(slots), CHAINS[1])
        index.removed(chance.choice(slots), CHAINS[1])
    swept(index)
    assert len(index._precise.masks) < 8192
    index.retire(slots[0])
    swept(index)
    assert len(index._precise.masks) <= 1 + len(CHAINS[1])


async def test_the_sweeper_works_when_there_is_work_and_rests_when_not() -> None:
    sweeper = Sweeper(asyncio.get_running_loop(), pause_s=0.0)
    first, second = sweeper.index(), sweeper.index()
    for index in (first, second):
        slot = index.open("a", 0, 0, 1000)
        index.stored(slot, CHAINS[6])
        index.retire(slot)
    for _ in range(10_000):
        if sweeper._timer:
            await asyncio.sleep(0)
    assert not first._has_dirt()
    assert not second._has_dirt()
    sweeper.forget(first)
    sweeper.close()
    second.retire(second.open("a", 0, 1, 1000))
    assert sweeper._timer is None
