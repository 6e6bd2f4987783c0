"""Cells of an open-addressing hash table: their memory, and where a key is or would be."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "Keys", "Numbers", "Places"]

_RELEASED_BYTES = 1 << 22  # at once: 64 MB can take the kernel 13 ms

Keys = NDArray[np.uint64]
Numbers = NDArray[np.uint32]
Places = NDArray[np.intp]


def _pages(size_bytes: int) -> mmap.mmap:
    """Zeros that the kernel gets back, and piece by piece, neither of which malloc promises."""
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Cells:
    """Keys (0 is an empty cell) and the two columns of numbers, as arrays and, for single cells, as memoryviews."""

    __slots__ = ("_memory", "columns", "keys", "last", "size", "used", "view", "views")

    def __init__(self, size: int) -> None:
        self.size = size
        self.last = size - 1
        self.used = 0
        self._memory = [_pages(size * width) for width in (8, 4, 4)]
        self.keys: Keys = np.frombuffer(self._memory[0], np.uint64)
        one, other = (np.frombuffer(memory, np.uint32) for memory in self._memory[1:])
        self.columns: tuple[Numbers, Numbers] = (one, other)
        self.view: Any = memoryview(self.keys)  # type: ignore[arg-type]
        self.views: Any = tuple(memoryview(column) for column in self.columns)  # type: ignore[arg-type]

    def touch(self) -> None:
        """Use all of the memory."""
        self.keys.fill(0)
        for column in self.columns:
            column.fill(0)

    def release(self) -> Iterator[None]:
        """Give the memory back. Nobody may look anything up from now on."""
        for memory in self._memory:
            for start in range(0, len(memory), _RELEASED_BYTES):
                memory.madvise(mmap.MADV_DONTNEED, start, min(_RELEASED_BYTES, len(memory) - start))
                yield

    def seek(self, key: int) -> int:
        """Its place, or ~place of the empty cell where it would be. Hot."""
        view, last = self.view, self.last
        at, step = key & last, 0
        while found := view[at]:
            if found == key:
                return at
            step += 1
            at = at + step & last
        return ~at

    def find(self, keys: Keys) -> Places:
        """Their places, or ~place of the empty cell where each would be."""
        last, cells = self.last, self.keys
        at = (keys & np.uint64(last)).astype(np.intp)
        found = cells[at]
        left = np.flatnonzero(found != keys)
        place, found, wanted, step = at[left], found[left], keys[left], 0
        while left.size:
            empty = found == 0
            at[left[empty]] = ~place[empty]
            step += 1
            place = (place + step) & last
            at_hit = cells[place]
            hit = (at_hit == wanted) & ~empty
            at[left[hit]] = place[hit]
            going_on = ~(empty | hit)
            left, place, found, wanted = left[going_on], place[going_on], at_hit[going_on], wanted[going_on]
        return at

    def insert(self, keys: Keys) -> Places:
        """Places for keys that are not here."""
        last, cells = self.last, self.keys
        at = (keys & np.uint64(last)).astype(np.intp)
        left, place, wanted, step = np.arange(keys.size), at.copy(), keys, 0
        while left.size:
            empty = np.flatnonzero(cells[place] == 0)
            cells[place[empty]] = wanted[empty]  # of several that want one cell the last gets it
            lost = np.flatnonzero(cells[place] != wanted)
            step += 1
            left, wanted = left[lost], wanted[lost]
            place = (place[lost] + step) & last
            at[left] = place
        self.used += keys.size
        return at

    def insert_at(self, keys: Keys, places: Places) -> Places:
        """The same, with the empty cells that `find` told. They may differ in the end, where several want one."""
        cells = self.keys
        cells[places] = keys
        lost = np.flatnonzero(cells[places] != keys)
        if lost.size:
            places[lost] = self.insert(keys[lost])
        self.used += keys.size - lost.size
        return places
