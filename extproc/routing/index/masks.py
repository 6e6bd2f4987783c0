"""Sets of slots as integers, each kept once and named by a small number.

Neighbouring blocks of a prompt are mostly held by the same slots, so there are far fewer sets than blocks.
"""

from __future__ import annotations

__all__ = ["Masks"]


class Masks:
    """Number ↔ bit mask. Number 0 is the empty mask.

    Numbers are never counted while they are in use; who walks over everything that holds numbers empties `used`
    before, adds what is met, and then frees the others. `used` also gets what is interned meanwhile.
    """

    __slots__ = ("_free", "_numbers", "bits", "used")

    def __init__(self) -> None:
        self.bits = [0]
        self.used = {0}
        self._numbers = {0: 0}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def intern(self, bits: int) -> int:
        """The number of a mask. Hot."""
        number = self._numbers.get(bits)
        if number is None:
            if self._free:
                number = self._free.pop()
                self.bits[number] = bits
            else:
                number = len(self.bits)
                self.bits.append(bits)
            self._numbers[bits] = number
        self.used.add(number)
        return number

    def free_unused(self, start: int, stop: int) -> None:
        """Those of the numbers start … stop - 1 that are not in `used`."""
        bits, numbers, used = self.bits, self._numbers, self.used
        for number in range(start, min(stop, len(bits))):
            if number not in used and bits[number]:
                del numbers[bits[number]]
                bits[number] = 0
                self._free.append(number)
