"""A hash table from block hashes to two small numbers each, which never stalls the loop, not even when it grows.

Open addressing in numpy arrays (probing 1, 3, 6, 10, … cells further), 16 bytes a cell. A prompt's 15,000 hashes are
looked up at once, which hides the memory's latency: 50 to 100 ns a block where dicts of 5 million blocks take 400.
Short lists (a KV event, a chat's prompt) go cell by cell: numpy's calls cost as much as a hundred cells.

A full table grows into a new one, a few thousand cells at a time, pushed by every insertion and by whoever has time
(`grow`). First a thread touches the new table's memory: the first use of a page costs a microsecond, that of a huge
page up to 5 ms, and numpy lets others run meanwhile. Then the cells move, in order, and both tables are read. What is
known of both:

- a key is never taken out of a table, its numbers become 0 ("nobody"), and cells of nobody do not move;
- a key in the new table is the truth; a key in the old one counts if it is not in the new one and not of nobody.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from threading import Thread

import numpy as np

from extproc.routing.index.cells import Cells, Keys, Numbers, Places

__all__ = ["GUESS", "PRECISE", "Column", "Table", "as_vector"]

Column = int
PRECISE: Column = 0
GUESS: Column = 1

SMALLEST_CELLS = 1 << 20  # 16 MB; growing costs more than being large
_GROW_AT = 0.55  # of the cells used
_AIM_AT_MOST = 0.42  # of the new table's cells used
_NEVER_OVER = 0.9  # of the cells used; growth that is behind is then finished at once
_FEW = 64  # hashes; fewer are cheaper one by one
_REMEMBERED = 64  # prompts
_LOOKED_AT_FIRST = 8  # hashes; where a prompt is new, its first one tells that
_FIRST_READ = 512  # hashes; prompts that nobody knows end here
_LOOKED_UP = 1 << 14  # hashes at once: 0.5 ms
_MOVED = 4096  # cells at once: 0.15 ms
_TOUCHED_HERE = 1 << 16  # cells, 1 MB; more are touched by a thread
_MOVED_AN_INSERTION = 8  # cells of the old table: while there are two, everything costs twice as much
_SAMPLE = 1 << 14  # cells looked at to tell how many are of nobody

Runs = list[tuple[int, int]]
"""(number, how many blocks in a row have it)"""


def as_vector(hashes: Sequence[int]) -> Keys:
    """Without a copy where it is an array."""
    if isinstance(hashes, array):
        return np.frombuffer(hashes, np.uint64)
    return np.array(hashes, np.uint64)


def _runs_of(base: int, precise: Numbers, guess: Numbers) -> Iterator[tuple[int, int, int]]:
    starts = np.flatnonzero((precise[1:] != precise[:-1]) | (guess[1:] != guess[:-1])) + 1
    yield base, int(precise[0]), int(guess[0])
    yield from zip((starts + base).tolist(), precise[starts].tolist(), guess[starts].tolist(), strict=True)


class Table:
    """Block hash → (number in the column PRECISE, number in the column GUESS); 0 in both for what is not there."""

    __slots__ = ("_cells", "_growing", "_looked_up", "_old", "_places", "_push", "_smallest", "_toucher", "growths")

    def __init__(self, smallest_cells: int = SMALLEST_CELLS) -> None:
        """`smallest_cells`: a power of two."""
        self._smallest = smallest_cells
        self._cells = Cells(smallest_cells)
        self._cells.touch()  # now, and not in the first requests
        self._old: Cells | None = None
        self._growing: Iterator[int] | None = None
        self._push = 0.0  # insertions that growth is behind
        self._toucher: Thread | None = None
        self._looked_up: dict[int, Sequence[int]] = {}
        self._places: dict[int, tuple[Sequence[int], Cells, Places]] = {}
        self.growths = 0  # begun

    @property
    def used(self) -> int:
        """Cells used, those of nobody among them."""
        return self._cells.used + (self._old.used if self._old else 0)

    @property
    def memory_bytes(self) -> int:
        """Of the arrays."""
        return 16 * (self._cells.size + (self._old.size if self._old else 0))

    @property
    def growing(self) -> bool:
        """Whether `grow` has something to do."""
        return self._growing is not None

    def runs(self, hashes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(where it starts, PRECISE, GUESS) of every run of blocks with the same numbers, in order; runs may repeat.

        Who asks stops at the first numbers that say enough, so little is looked up that nobody wants.
        """
        yield from self._runs_of_few(hashes[:_LOOKED_AT_FIRST])
        if len(hashes) < _FEW:
            yield from self._runs_of_few(hashes[_LOOKED_AT_FIRST:], _LOOKED_AT_FIRST)
            return
        places = self._remembered(hashes)
        if places is not None:
            one, other = self._cells.columns
            yield from _runs_of(0, one[places], other[places])
            return
        vector = as_vector(hashes)
        base, size = _LOOKED_AT_FIRST, _FIRST_READ
        while base < len(vector):
            yield from _runs_of(base, *self._read(vector[base : base + size]))
            base, size = base + size, _LOOKED_UP
        self._remember(hashes)

    def _remembered(self, hashes: Sequence[int]) -> Places | None:
        """Where all of these are, if they were looked up before: cells never move but into another table."""
        kept = self._places.get(id(hashes))
        if kept is None or kept[0] is not hashes or kept[1] is not self._cells or self._old:
            return None
        return kept[2]

    def _remember(self, hashes: Sequence[int]) -> None:
        """Of a prompt that was looked up whole for the second time: the same array is given to us again."""
        if self._old or len(hashes) > _LOOKED_UP:
            return
        if self._looked_up.get(id(hashes)) is not hashes:
            if len(self._looked_up) >= _REMEMBERED:
                del self._looked_up[next(iter(self._looked_up))]
            self._looked_up[id(hashes)] = hashes  # which keeps its id its own
            return
        places = self._cells.find(as_vector(hashes))
        if not (places < 0).any():
            if len(self._places) >= _REMEMBERED:
                del self._places[next(iter(self._places))]
            self._places[id(hashes)] = (hashes, self._cells, places)

    def _runs_of_few(self, hashes: Sequence[int], start: int = 0) -> Iterator[tuple[int, int, int]]:
        """Hot, as `_edit_few`."""
        cells = self._cells
        if self._old:
            yield from self._runs_of_two_tables(hashes, start)
            return
        keys, (precises, guesses), last = cells.view, cells.views, cells.last
        precise = guess = -1
        for key in hashes:
            at, step = key & last, 0
            while (found := keys[at]) and found != key:
                step += 1
                at = at + step & last
            if found:
                if precises[at] != precise or guesses[at] != guess:
                    precise, guess = precises[at], guesses[at]
                    yield start, precise, guess
            elif precise or guess:
                precise = guess = 0
                yield start, 0, 0
            start += 1

    def _runs_of_two_tables(self, hashes: Sequence[int], start: int) -> Iterator[tuple[int, int, int]]:
        for at, key in enumerate(hashes, start):
            cells = self._cells
            place = cells.seek(key)
            if place < 0 and self._old:
                cells = self._old
                place = cells.seek(key)
            if place < 0:
                yield at, 0, 0
            else:
                yield at, cells.views[PRECISE][place], cells.views[GUESS][place]

    def _read(self, keys: Keys) -> tuple[Numbers, Numbers]:
        cells = self._cells
        at = cells.find(keys)
        precise, guess = cells.columns[PRECISE][at], cells.columns[GUESS][at]
        absent = np.flatnonzero(at < 0)
        if absent.size:
            precise[absent] = guess[absent] = 0
            old = self._old
            if old:
                at = old.find(keys[absent])
                here = np.flatnonzero(at >= 0)
                precise[absent[here]] = old.columns[PRECISE][at[here]]
                guess[absent[here]] = old.columns[GUESS][at[here]]
        return precise, guess

    def edit(self, column: Column, hashes: Sequence[int], change: Callable[[int], int]) -> Runs:
        """Change the numbers of these blocks in one column, and return what they were. New ones had 0.

        `change` is called once or more for each number and must always say the same.
        """
        if len(hashes) < _FEW:
            return self._edit_few(column, hashes, change)
        places = self._remembered(hashes)
        if places is not None:
            numbers = self._cells.columns[column][places]
            before = int(numbers[0])
            if (numbers == before).all():
                after = change(before)
                if after != before:
                    self._cells.columns[column][places] = after
                return [(before, len(hashes))]
        vector = as_vector(hashes)
        runs: Runs = []
        for base in range(0, len(vector), _LOOKED_UP):
            runs += self._edit_many(column, vector[base : base + _LOOKED_UP], change)
        return runs

    def _edit_few(self, column: Column, hashes: Sequence[int], change: Callable[[int], int]) -> Runs:
        """Hot: every prompt's and every KV event's. What is usual stands here, and is done without a call: 0.4 us."""
        cells = self._cells
        if self._old or cells.used + len(hashes) > cells.size * _GROW_AT:
            return [(self._edit_one(column, key, change), 1) for key in hashes]
        keys, numbers, last = cells.view, cells.views[column], cells.last
        runs: Runs = []
        inserted = 0
        before, length, after = -1, 0, 0
        for key in hashes:
            at, step = key & last, 0
            while (found := keys[at]) and found != key:
                step += 1
                at = at + step & last
            number = numbers[at] if found else 0
            if number == before:
                length += 1
            else:
                if length:
                    runs.append((before, length))
                before, length, after = number, 1, change(number)
            if found:
                numbers[at] = after
            elif after:
                keys[at] = key
                numbers[at] = after
                inserted += 1
        if length:
            runs.append((before, length))
        cells.used += inserted
        return runs

    def _edit_one(self, column: Column, key: int, change: Callable[[int], int]) -> int:
        cells = self._cells
        place = cells.seek(key)
        if place < 0 and (old := self._old):
            old_place = old.seek(key)
            if old_place >= 0 and (old.views[PRECISE][old_place] or old.views[GUESS][old_place]):
                cells, place = old, old_place
        if place >= 0:
            view = cells.views[column]
            before: int = view[place]
            view[place] = change(before)
            return before
        after = change(0)
        if after:
            cells.view[~place] = key
            cells.views[column][~place] = after
            cells.used += 1
            self._inserted(1)
        return 0

    def _edit_many(self, column: Column, keys: Keys, change: Callable[[int], int]) -> Runs:
        self._reserve(keys.size)
        cells, old = self._cells, self._old
        at = cells.find(keys)
        numbers = cells.columns[column]
        before = numbers[at]
        here = np.flatnonzero(at >= 0)
        absent = in_old = old_at = np.flatnonzero(at < 0)
        if absent.size:
            before[absent] = 0
            if old:
                old_at = old.find(keys[absent])
                known = old_at >= 0
                known[known] = (old.columns[PRECISE][old_at[known]] | old.columns[GUESS][old_at[known]]) != 0
                in_old, old_at, absent = absent[known], old_at[known], absent[~known]
                before[in_old] = old.columns[column][old_at]
        starts = np.concatenate(([0], np.flatnonzero(before[1:] != before[:-1]) + 1))
        was = before[starts].tolist()
        lengths = np.diff(starts, append=keys.size)
        changes = {number: change(number) for number in set(was)}
        after = np.repeat(np.array([changes[number] for number in was], np.uint32), lengths)
        numbers[at[here]] = after[here]
        if old and here.size < keys.size:
            old.columns[column][old_at] = after[in_old]
        if absent.size and changes[0]:
            numbers[cells.insert_at(keys[absent], ~at[absent])] = changes[0]
            self._inserted(absent.size)
        return list(zip(was, lengths.tolist(), strict=True))

    def _inserted(self, count: int) -> None:
        """Push growth as far as it must be for these insertions."""
        if self._growing is None:
            if self._cells.used < self._cells.size * _GROW_AT:
                return
            self._begin_to_grow(0)
        self._push += count
        while self._push > 0 and self.grow():
            pass
        self._reserve(0)

    def _reserve(self, count: int) -> None:
        """Room for so many keys. It is there unless the table is small, or the thread got no time."""
        while self._cells.used + count > self._cells.size * _NEVER_OVER:
            if self._growing is None:
                self._begin_to_grow(count)
            while self._growing:
                if self._toucher:
                    self._toucher.join()
                self.grow()

    def _begin_to_grow(self, count: int) -> None:
        self._growing = self._grow(count)
        self._push = 0.0
        self.growths += 1

    def grow(self) -> bool:
        """One step of growth, 0.2 ms. Returns whether there was something to do, other than wait."""
        cells = next(self._growing, None) if self._growing else None
        if cells is None:
            self._growing = None
            return False
        self._push -= cells / _MOVED_AN_INSERTION
        return cells > 0

    def _grow(self, count: int) -> Iterator[int]:
        """Into a table with room for `count` more. Yields cells moved."""
        full = self._cells
        sample = slice(0, min(full.size, _SAMPLE))  # hashes are uniform, so any cells tell of all
        held = int(np.count_nonzero(full.columns[PRECISE][sample] | full.columns[GUESS][sample]))
        needed = held * (full.size // sample.stop) + count
        size = max(self._smallest, full.size // 2)  # smaller, it would be full before the old one is moved
        while size * _AIM_AT_MOST < needed:
            size *= 2
        fresh = Cells(size)
        if size > _TOUCHED_HERE:
            self._toucher = Thread(target=fresh.touch, name="prefix-index", daemon=True)
            self._toucher.start()
            while self._toucher.is_alive():
                yield 0
            self._toucher = None
        self._cells, self._old = fresh, full
        self._places.clear()
        self._push = 0.0
        for start in range(0, full.size, _MOVED):
            part = slice(start, start + _MOVED)
            columns = full.columns[PRECISE][part], full.columns[GUESS][part]
            moving = np.flatnonzero(columns[PRECISE] | columns[GUESS])
            at = fresh.insert(full.keys[part][moving])
            for column in (PRECISE, GUESS):
                fresh.columns[column][at] = columns[column][moving]
            yield _MOVED
        self._old = None
        for _ in full.release():
            yield _MOVED

    def columns(self) -> tuple[Numbers, Numbers]:
        """The numbers of all cells in no order, to be rewritten in place. Not while it grows."""
        assert self._old is None
        return self._cells.columns
