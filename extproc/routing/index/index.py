"""The prefix index of one pool and block size.

It keeps two things of every worker, apart from each other:

- *precise*: what its KV events say (`stored`, `removed`);
- *guess*: what it must hold after what was sent to it (`add`), forgotten by age: four slices, together as large as the
  worker's KV cache, of which the oldest is dropped whole. That models an engine's eviction without a list in order of
  use, and a list would drop chains head first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Match", "PrefixIndex", "Slot"]

SLICES = 4


@dataclass(slots=True, eq=False)
class Slot:
    """A worker's rank in one life of its cache: what can hold blocks. Made by `PrefixIndex.open` only."""

    worker: str  # address
    rank: int
    incarnation: int
    kv_blocks: int  # of our size that its cache holds
    open: bool = True
    precise: set[int] = field(default_factory=set)
    slices: list[set[int]] = field(default_factory=lambda: [set()])


@dataclass(frozen=True, slots=True)
class Match:
    """How many blocks from the start of a prompt each slot holds. Slots without any are absent."""

    precise: dict[Slot, int]
    guess: dict[Slot, int]


class PrefixIndex:
    """Blocks → slots. All methods are for the event loop's thread and return at once."""

    def __init__(self, on_work: Callable[[], None] = lambda: None) -> None:
        """`on_work` is called when `sweep` has something to do."""
        self._on_work = on_work

    def open(self, worker: str, rank: int, incarnation: int, kv_blocks: int) -> Slot:
        """A slot without blocks. `kv_blocks`: how many blocks its KV cache holds; it bounds the guess."""
        return Slot(worker, rank, incarnation, kv_blocks)

    def retire(self, slot: Slot) -> None:
        """It holds nothing from now on and must not be used again: restarted or removed. Again does nothing."""
        slot.open = False
        slot.precise.clear()
        slot.slices = [set()]

    def clear_precise(self, slot: Slot) -> None:
        """Events were lost: what they said is void, what was sent to it may still be there."""
        slot.precise.clear()

    def clear(self, slot: Slot) -> None:
        """The engine emptied its cache."""
        slot.precise.clear()
        slot.slices = [set()]

    def stored(self, slot: Slot, hashes: Sequence[int]) -> None:
        """By its events it now holds these blocks (the first copy of each: copies are the caller's to count)."""
        if slot.open:
            slot.precise.update(hashes)

    def removed(self, slot: Slot, hashes: Sequence[int]) -> None:
        """By its events it no longer holds these blocks (the last copy went)."""
        slot.precise.difference_update(hashes)

    def add(self, slot: Slot, hashes: Sequence[int]) -> int:
        """It was sent these blocks, by us or by another processor. All of the prompt, so that all are new again.

        Returns how many of the first it was thought to hold already.
        """
        if not slot.open:
            return len(hashes)
        known = self.match(hashes, (slot,)).guess.get(slot, 0)
        if len(slot.slices[-1]) >= slot.kv_blocks / SLICES:
            slot.slices = [*slot.slices[1 - SLICES :], set()]
        slot.slices[-1].update(hashes)
        return known

    def drop(self, slot: Slot, hashes: Sequence[int]) -> None:
        """It does not hold these: the request failed or went elsewhere. Those that `add` did not know already."""
        for piece in slot.slices:
            piece.difference_update(hashes)

    def match(self, hashes: Sequence[int], slots: Sequence[Slot]) -> Match:
        """How far each of these slots holds a prompt."""
        precise: dict[Slot, int] = {}
        guess: dict[Slot, int] = {}
        for slot in slots:
            for found, known in ((precise, slot.precise), (guess, set().union(*slot.slices))):
                count = next((at for at, block in enumerate(hashes) if block not in known), len(hashes))
                if count:
                    found[slot] = count
        return Match(precise, guess)

    def sweep(self, budget_s: float = 0.001) -> bool:
        """Work a little in the background. Returns whether there is more."""
        return False
