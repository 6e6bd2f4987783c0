"""Ids of texts that were encoded before: one store for all tokenizers of a process, bounded in bytes.

A text is cut at boundaries (`cache_boundaries`) into parts. An entry is a part after those that stand before it: its
key is its parent's number, its marker and its text, its value the ids of the part alone. So the entries of growing
conversations form a trie, each turn is held once, and a shared system prompt is one entry. Whatever part of a text was
not found is encoded and becomes entries, whether or not something before it was found. A text without boundaries is one
part: then this is a cache of exact texts. A cache of whole texts before this one was tried and is not worth it: hashing
the whole text costs as much as finding its parts.

The least recently used entry goes first. An entry whose parent went is never found again, since numbers are not used
twice, and ages until it goes itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from sys import getsizeof

from msgspec import Struct

from extproc.tokens.cache_boundaries import MAX_MARKERS, Boundaries, Parts

__all__ = ["Found", "TextCache", "TokenCache"]

_ENTRY_BYTES = 480  # entry, key and their places in the dictionary, as measured by resident memory
_LARGEST_SHARE = 8  # an entry is at most this part of the budget, so that one text does not drive out all others
# Searching and learning cost about 1 ns a character. Encoding with the fast library costs 4 to 5 ns for the tokenizers
# that it knows best, so there a fifth of the text has to be found; 15 ns and more for all others.
_SECONDS_PER_CHARACTER = 1e-9
_TRIALS = 512  # texts after which it is known whether searching pays; if not,
_REST = 8192  # so many are encoded without
_AGES = 16  # what was used since the last sixteenth of the budget was written is young


class _Entry(Struct, gc=False):
    key: tuple[int, str]
    number: int
    varints: bytes
    end: int  # characters up to the end of this part, all parts before it included
    age: int


class Found(Struct, gc=False):
    """What of a text is known: how many of its parts, and their ids."""

    parts: Parts
    known: int
    end: int  # characters of the known parts
    varints: list[bytes]
    parent: int  # number of the last known part's entry


class TokenCache:
    """The store. Counters are read by metrics."""

    __slots__ = (
        "_age",
        "_age_left",
        "_entries",
        "_last_number",
        "encoded_characters",
        "evictions",
        "hits",
        "largest_bytes",
        "lookups",
        "max_bytes",
        "partial_hits",
        "reused_characters",
        "skipped",
        "used_bytes",
    )

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.largest_bytes = max_bytes // _LARGEST_SHARE
        self.used_bytes = 0
        self.lookups = 0
        self.hits = 0  # of a whole text
        self.partial_hits = 0  # of its beginning
        self.skipped = 0  # texts that were encoded without a look-up, where too little was found before
        self.reused_characters = 0
        self.encoded_characters = 0  # of texts that were looked up
        self.evictions = 0
        self._entries: OrderedDict[tuple[int, str], _Entry] = OrderedDict()
        self._last_number = 0
        self._age = 0
        self._age_left = max_bytes // _AGES

    def __len__(self) -> int:
        return len(self._entries)

    def new_number(self) -> int:
        """Never given before. The numbers up to the next one are free, for the kinds of markers."""
        self._last_number += MAX_MARKERS
        return self._last_number

    def find(self, root: int, parts: Parts) -> Found:
        """The entries of the first parts. Hot: 0.2 us a part."""
        get = self._entries.get
        parent = root
        path: list[_Entry] = []
        for text, kind in zip(parts.texts, parts.kinds, strict=True):
            entry = get((parent + kind, text))
            if entry is None:
                break
            path.append(entry)
            parent = entry.number
        self.lookups += 1
        if not path:
            return Found(parts, 0, 0, [], root)
        last = path[-1]
        end = last.end
        self.reused_characters += end
        if len(path) == len(parts.texts):
            self.hits += 1
        elif end:
            self.partial_hits += 1
        if last.age != self._age:
            self._touch(path)
        return Found(parts, len(path), end, [entry.varints for entry in path], parent)

    def _touch(self, path: list[_Entry]) -> None:
        """Backwards, so that a part never goes before those that follow it."""
        age = self._age
        move = self._entries.move_to_end
        for entry in reversed(path):
            if entry.age != age:
                entry.age = age
                move(entry.key)

    def add(self, found: Found, varints: Sequence[bytes], lengths: Sequence[int]) -> None:
        """Make entries of the parts that were not found; each has its ids and its length in characters."""
        entries = self._entries
        parent, end, age = found.parent, found.end, self._age
        added = 0
        texts, kinds = found.parts.texts[found.known :], found.parts.kinds[found.known :]
        for text, kind, ids, length in zip(texts, kinds, varints, lengths, strict=True):
            end += length
            size = _ENTRY_BYTES + getsizeof(text) + getsizeof(ids)
            if size > self.largest_bytes:
                break
            key = (parent + kind, text)
            known = entries.get(key)
            if known is None:  # else the same text was encoded twice at once
                known = entries[key] = _Entry(key, self.new_number(), ids, end, age)
                added += size
            parent = known.number
        self.used_bytes += added
        self._age_left -= added
        if self._age_left < 0:
            self._age += 1
            self._age_left = self.max_bytes // _AGES
        while self.used_bytes > self.max_bytes:
            key, entry = entries.popitem(last=False)
            self.used_bytes -= _ENTRY_BYTES + getsizeof(key[1]) + getsizeof(entry.varints)
            self.evictions += 1

    def discard(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.used_bytes = 0


class TextCache:
    """One tokenizer's texts in a store, as long as it pays."""

    __slots__ = ("_boundaries", "_found", "_needed_share", "_rest", "_root", "_searched", "_store", "_trials")

    def __init__(self, store: TokenCache, boundaries: Boundaries, seconds_per_character: float = float("inf")) -> None:
        """`seconds_per_character`: of encoding without a cache."""
        self._store = store
        self._root = store.new_number()
        self._boundaries = boundaries
        self._needed_share = _SECONDS_PER_CHARACTER / seconds_per_character
        self._rest = 0  # texts to encode without asking
        self._trials = 0
        self._searched = 0
        self._found = 0

    def pays(self) -> bool:
        """Whether to look for the next text, or just to encode it."""
        if self._rest:
            self._rest -= 1
            self._store.skipped += 1
            return False
        return True

    def find(self, text: str) -> Found:
        """What is known of a text. Hot."""
        store = self._store
        found = store.find(self._root, self._boundaries.split(text))
        store.encoded_characters += len(text) - found.end
        self._searched += len(text)
        self._found += found.end
        self._trials += 1
        if self._trials == _TRIALS:
            if self._found < self._needed_share * self._searched:
                self._rest = _REST
            self._trials = self._searched = self._found = 0
        return found

    def add(self, found: Found, varints: bytes) -> None:
        """Learn the ids of everything behind `found.end`."""
        boundaries, parts, known = self._boundaries, found.parts, found.known
        pieces = boundaries.cut(varints, parts, known)
        if pieces is not None:
            self._store.add(found, pieces, boundaries.lengths(parts, known))
