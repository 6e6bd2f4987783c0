"""How many physical copies of each block there are, by place (a tier and a group of the KV cache).

Nearly every block has one copy at the first place, and costs nothing here.
"""

from __future__ import annotations

FIRST_PLACE = 0


class Copies:
    """Of the blocks that the owner knows: one that nobody has told of here is one with a single copy."""

    __slots__ = ("others",)

    def __init__(self) -> None:
        self.others: dict[int, dict[int, int]] = {}
        """Copies by place, of blocks that have not one at the first place; empty: no copy."""

    def any(self, block: int) -> bool:
        """Whether there is one, of a block that the owner knows."""
        others = self.others
        return block not in others or bool(others[block])

    def set_first(self, block: int, place: int) -> None:
        """The owner knows a new block, with one copy."""
        if place != FIRST_PLACE:
            self.others[block] = {place: 1}

    def add(self, block: int, place: int) -> bool:
        """One more. Returns whether there was none."""
        counts = self.others.get(block)
        if counts is None:
            counts = self.others[block] = {FIRST_PLACE: 1}
        none = not counts
        counts[place] = counts.get(place, 0) + 1
        if none and place == FIRST_PLACE:
            del self.others[block]
        return none

    def take(self, block: int, place: int) -> int:
        """One less. Returns how many are left, and -1 where there was none at this place."""
        others = self.others
        counts = others.get(block)
        if counts is None:
            if place != FIRST_PLACE:
                return -1
            others[block] = {}
            return 0
        count = counts.get(place, 0)
        if not count:
            return -1
        if count > 1:
            counts[place] = count - 1
        else:
            del counts[place]
        left = sum(counts.values())
        if left == 1 and FIRST_PLACE in counts:
            del others[block]
        return left

    def forget(self, block: int) -> None:
        """The owner knows it no more."""
        self.others.pop(block, None)
