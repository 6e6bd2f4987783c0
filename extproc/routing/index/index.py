"""The prefix index of one pool and block size.

It keeps two things of every worker, apart from each other:

- *precise*: what its KV events say (`stored`, `removed`);
- *guess*: what it must hold after what was sent to it (`add`), forgotten by age: a ring of four slices, together as
  large as the worker's KV cache, of which the oldest is dropped whole. That models an engine's eviction without a list
  in order of use (and a list would drop chains head first). The ring is each worker's own, as a busy worker evicts
  sooner than an idle one.

A slot is one bit of the precise masks and `_PLANES` bits, one a slice, of those of the guess. Whatever is forgotten as
a whole (a retired slot, a dropped slice) leaves the live masks at once; `sweep` takes it out of the table a little at
a time, and only then its bits are used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from extproc.routing.index.masks import Masks
from extproc.routing.index.table import GUESS, PRECISE, SMALLEST_CELLS, Column, Table

__all__ = ["Match", "PrefixIndex", "Slot"]

SLICES = 4
_PLANES = SLICES + 1  # one is being swept
_ADDED_AT_ONCE = 4096  # blocks of a prompt: 1 ms while the table grows
_MOST_LATER = 32  # prompts whose end is still to be added
_SWEEP_CELLS = 1 << 14  # at once: 0.1 ms
_CLEANED_MASKS = 512  # at once: 0.3 ms
_FREE_MASKS = 2048  # looked at at once
_MANY_MASKS = 4096  # more, and twice as many as after the last sweep: time to sweep


@dataclass(slots=True, eq=False)
class Slot:
    """A worker's rank in one life of its cache: what can hold blocks. Made by `PrefixIndex.open` only."""

    worker: str  # address
    rank: int
    incarnation: int
    kv_blocks: int  # of our size that its cache holds; may be set at any time
    open: bool = True
    precise: int = 0  # its bit in the precise masks
    shift: int = 0  # of its first bit in the guess's masks
    turn: int = 0  # of the ring: the slice being filled is turn % _PLANES
    filled: int = 0  # blocks in that slice
    live: int = 0  # the bits of its slices that are not dropped


@dataclass(frozen=True, slots=True)
class Match:
    """How many blocks from the start of a prompt each slot holds. Slots without any are absent."""

    precise: dict[Slot, int]
    guess: dict[Slot, int]


class _Bits:
    """The masks of one column, and who has which of their bits: `width` of them each."""

    __slots__ = ("dirty", "masks", "owners", "retired", "unused", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.masks = Masks()
        self.owners: list[Slot | None] = []
        self.unused: list[int] = []
        self.retired: list[int] = []  # to be swept
        self.dirty = 0  # bits to be swept

    def give(self, slot: Slot) -> int:
        """The first of its bits."""
        if not self.unused:
            self.unused.append(len(self.owners))
            self.owners.append(None)
        number = self.unused.pop()
        self.owners[number] = slot
        return number * self.width

    def take(self, shift: int) -> None:
        """They are nobody's, and unused when they are swept."""
        number = shift // self.width
        self.owners[number] = None
        self.retired.append(number)
        self.dirty |= (1 << self.width) - 1 << shift

    def note(self, lost: int, at: int, found: dict[Slot, int]) -> None:
        """The slots with their first bit in `lost` hold `at` blocks."""
        while lost:
            low = lost & -lost
            slot = self.owners[(low.bit_length() - 1) // self.width]
            if slot:
                found[slot] = at
            lost ^= low


class PrefixIndex:
    """Blocks → slots. All methods are for the event loop's thread and return at once."""

    def __init__(self, on_work: Callable[[], None] = lambda: None, *, smallest_cells: int = SMALLEST_CELLS) -> None:
        """`on_work` is called when `sweep` has something to do; the table begins with `smallest_cells` (2^n)."""
        self._on_work = on_work
        self._table = Table(smallest_cells)
        self._precise = _Bits(1)
        self._guess = _Bits(_PLANES)
        self._later: deque[tuple[Slot, Sequence[int]]] = deque()
        self._sweeping: Iterator[None] | None = None
        self._masks_after_sweep = 0

    @property
    def memory_bytes(self) -> int:
        """Of the table; the masks are little beside it."""
        return self._table.memory_bytes

    @property
    def blocks(self) -> int:
        """In the table, those that nobody holds any more among them until it grows."""
        return self._table.used

    def open(self, worker: str, rank: int, incarnation: int, kv_blocks: int) -> Slot:
        """A slot without blocks. `kv_blocks`: how many blocks its KV cache holds; it bounds the guess."""
        slot = Slot(worker, rank, incarnation, kv_blocks)
        self._give_precise(slot)
        self._give_guess(slot)
        return slot

    def retire(self, slot: Slot) -> None:
        """It holds nothing from now on and must not be used again: restarted or removed. Again does nothing."""
        if slot.open:
            slot.open = False
            self._take_precise(slot)
            self._take_guess(slot)

    def clear(self, slot: Slot) -> None:
        """The engine emptied its cache."""
        if slot.open:
            self.clear_precise(slot)
            self._take_guess(slot)
            self._give_guess(slot)

    def clear_precise(self, slot: Slot) -> None:
        """Events were lost: what they said is void, what was sent to it may still be there."""
        if slot.open:
            self._take_precise(slot)
            self._give_precise(slot)

    def _give_precise(self, slot: Slot) -> None:
        slot.precise = 1 << self._precise.give(slot)

    def _take_precise(self, slot: Slot) -> None:
        self._precise.take(slot.precise.bit_length() - 1)
        slot.precise = 0
        self._on_work()

    def _give_guess(self, slot: Slot) -> None:
        slot.shift = self._guess.give(slot)
        slot.turn = slot.filled = 0
        slot.live = 1 << slot.shift

    def _take_guess(self, slot: Slot) -> None:
        self._guess.take(slot.shift)
        slot.live = 0
        self._later = deque(one for one in self._later if one[0] is not slot)
        self._on_work()

    def stored(self, slot: Slot, hashes: Sequence[int]) -> None:
        """By its events it now holds these blocks (the first copy of each: copies are the caller's to count)."""
        bit = slot.precise
        if bit:
            masks = self._precise.masks
            bits, intern = masks.bits, masks.intern
            self._edit(PRECISE, hashes, lambda number: intern(bits[number] | bit))

    def removed(self, slot: Slot, hashes: Sequence[int]) -> None:
        """By its events it no longer holds these blocks (the last copy went)."""
        bit = slot.precise
        if bit:
            masks = self._precise.masks
            bits, intern = masks.bits, masks.intern
            self._edit(PRECISE, hashes, lambda number: intern(bits[number] & ~bit))

    def add(self, slot: Slot, hashes: Sequence[int]) -> int:
        """It was sent these blocks, by us or by another processor. All of the prompt, so that all are new again.

        Returns how many of the first it was thought to hold already. Of very long prompts the end is added within a
        few turns.
        """
        if not slot.open:
            return len(hashes)
        if len(hashes) <= _ADDED_AT_ONCE:
            return self._add(slot, hashes)
        known = self._add(slot, hashes[:_ADDED_AT_ONCE])
        rest = hashes[_ADDED_AT_ONCE:]
        if rest:
            if known == _ADDED_AT_ONCE:
                known += self._known(slot, rest)
            self._later.append((slot, rest))
            if len(self._later) > _MOST_LATER:
                self._catch_up()
            self._on_work()
        return known

    def _add(self, slot: Slot, hashes: Sequence[int]) -> int:
        if slot.filled * SLICES >= slot.kv_blocks:
            self._turn(slot)
        masks, live = self._guess.masks, slot.live
        bits, intern = masks.bits, masks.intern
        bit = 1 << slot.shift + slot.turn % _PLANES
        known, going_on = 0, True
        for number, length in self._edit(GUESS, hashes, lambda number: intern(bits[number] | bit)):
            before = bits[number]
            going_on = going_on and before & live != 0
            if going_on:
                known += length
            if not before & bit:
                slot.filled += length
        return known

    def _known(self, slot: Slot, hashes: Sequence[int]) -> int:
        bits, live = self._guess.masks.bits, slot.live
        for at, _, number in self._table.runs(hashes):
            if not bits[number] & live:
                return at
        return len(hashes)

    def _catch_up(self) -> None:
        """A piece of what is to be added."""
        slot, hashes = self._later.popleft()
        self._add(slot, hashes[:_ADDED_AT_ONCE])
        if rest := hashes[_ADDED_AT_ONCE:]:
            self._later.appendleft((slot, rest))

    def _turn(self, slot: Slot) -> None:
        """Begin a new slice, unless the one that was dropped last is not swept yet: then this one gets larger."""
        following = 1 << slot.shift + (slot.turn + 1) % _PLANES
        if self._guess.dirty & following:
            return
        slot.turn += 1
        slot.filled = 0
        slot.live |= following
        if slot.turn >= SLICES:
            oldest = 1 << slot.shift + (slot.turn + 1) % _PLANES
            slot.live &= ~oldest
            self._guess.dirty |= oldest
            self._on_work()

    def drop(self, slot: Slot, hashes: Sequence[int]) -> None:
        """It does not hold these: the request failed or went elsewhere. Those that `add` did not know already."""
        if slot.open:
            while self._later:  # rare, and it may be among them
                self._catch_up()
            masks, kept = self._guess.masks, ~slot.live
            bits, intern = masks.bits, masks.intern
            self._edit(GUESS, hashes, lambda number: intern(bits[number] & kept))

    def _edit(self, column: Column, hashes: Sequence[int], change: Callable[[int], int]) -> list[tuple[int, int]]:
        table = self._table
        growths = table.growths
        runs = table.edit(column, hashes, change)
        if table.growths != growths:
            self._sweeping = None  # cells would move past it; it begins again
            self._on_work()
        return runs

    def match(self, hashes: Sequence[int], slots: Sequence[Slot]) -> Match:
        """How far each of these slots holds a prompt. Hot."""
        precise_alive = guess_alive = guess_live = 0
        for slot in slots:
            if slot.open:
                precise_alive |= slot.precise
                guess_live |= slot.live
                guess_alive |= 1 << slot.shift
        precise, guess = self._precise, self._guess
        precise_bits, guess_bits = precise.masks.bits, guess.masks.bits
        match = Match({}, {})
        for at, precise_number, guess_number in self._table.runs(hashes):
            held = precise_bits[precise_number] & precise_alive
            if held != precise_alive:
                if at:
                    precise.note(held ^ precise_alive, at, match.precise)
                precise_alive = held
            if guess_alive:
                held = guess_bits[guess_number] & guess_live
                # A slot's first bit, if any of its slices holds the block.
                held = (held | held >> 1 | held >> 2 | held >> 3 | held >> 4) & guess_alive
                if held != guess_alive:
                    if at:
                        guess.note(held ^ guess_alive, at, match.guess)
                    guess_alive = held
            if not precise_alive and not guess_alive:
                return match
        if hashes:
            precise.note(precise_alive, len(hashes), match.precise)
            guess.note(guess_alive, len(hashes), match.guess)
        return match

    def sweep(self, budget_s: float = 0.001) -> bool:
        """Work a little in the background: prompts' ends, growth, what was forgotten. Returns whether there is more."""
        end = perf_counter() + budget_s
        while perf_counter() < end:
            if self._later:
                self._catch_up()
            elif self._table.growing:
                if not self._table.grow():
                    return True
            elif self._sweeping:
                if next(self._sweeping, self) is self:
                    self._sweeping = None
            elif self._has_dirt():
                self._sweeping = self._sweep()
            else:
                return False
        return True

    def _has_dirt(self) -> bool:
        count = len(self._precise.masks) + len(self._guess.masks)
        return bool(self._precise.dirty or self._guess.dirty or count > max(_MANY_MASKS, 2 * self._masks_after_sweep))

    def _sweep(self) -> Iterator[None]:
        """Once over all cells: dirty bits away, then masks that no cell has."""
        both = self._precise, self._guess
        columns = self._table.columns()
        dirty = [bits.dirty for bits in both]
        retired = [len(bits.retired) for bits in both]
        for bits in both:
            bits.masks.used = {0}
        clean = [_Clean(bits.masks, dirt) for bits, dirt in zip(both, dirty, strict=True)]
        for start in range(0, columns[PRECISE].size, _SWEEP_CELLS):
            for column, cleaned in zip(columns, clean, strict=True):
                part = column[start : start + _SWEEP_CELLS]
                while not cleaned.learn(part):
                    yield
                part[:] = cleaned.to[part]
            yield
        for bits, dirt, count in zip(both, dirty, retired, strict=True):
            bits.dirty &= ~dirt
            bits.unused += bits.retired[:count]
            del bits.retired[:count]
            for start in range(0, len(bits.masks.bits), _FREE_MASKS):
                bits.masks.free_unused(start, start + _FREE_MASKS)
                yield
        self._masks_after_sweep = sum(len(bits.masks) for bits in both)


class _Clean:
    """Mask numbers → those of the masks without dirty bits; notes which are in use."""

    __slots__ = ("_dirty", "_known", "_masks", "to")

    def __init__(self, masks: Masks, dirty: int) -> None:
        self._masks = masks
        self._dirty = dirty
        self.to = np.zeros(len(masks.bits), np.uint32)
        self._known = np.zeros(len(masks.bits), np.bool_)
        self._known[0] = True

    def learn(self, numbers: NDArray[np.uint32]) -> bool:
        """Make `to` right for these, or for some of them: returns whether for all."""
        masks, to = self._masks, self.to
        more = len(masks.bits) - to.size
        if more > 0:
            to = self.to = np.concatenate((to, np.zeros(more, np.uint32)))
            self._known = np.concatenate((self._known, np.zeros(more, np.bool_)))
        met = np.zeros(to.size, np.bool_)
        met[numbers] = True
        unknown = np.flatnonzero(met & ~self._known)
        for number in unknown[:_CLEANED_MASKS].tolist():
            to[number] = masks.intern(masks.bits[number] & ~self._dirty)
            self._known[number] = True
        return unknown.size <= _CLEANED_MASKS
