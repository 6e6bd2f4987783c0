"""An engine's blocks as parts of ours, where ours are a multiple: SGLang's pages of one token, say.

Each block of the engine (a page here) knows the pages before it within our block. The page that completes a block of
ours has its chain hash, and the block is held while all of its pages have a copy. Pages may branch within our block, so
that one page is part of several of ours. A page without a copy is kept while others build on it: its tokens are still
right, and the engine may store it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from extproc.routing.blocks import extend
from extproc.routing.kv_events.blocks import (
    _MASK,
    _SHARDS,
    CONFLICT,
    FULL,
    TOKEN_IDS,
    UNKNOWN_BLOCK,
    UNKNOWN_PARENT,
    Change,
)
from extproc.routing.kv_events.copies import Copies
from extproc.token_ids import WIDTH, TokenIds

_MOST_BRANCHES = 64
"""Pages that may follow one page within a block of ours, so that no single event costs more than milliseconds."""


class _Page(Struct, gc=False):
    """Pages refer to each other by hash: no cycles, nothing for the collector."""

    seed: int  # our hash of the block before ours
    at: int  # pages of our block up to this one
    up: int | None  # the page before it in our block
    varints: bytes  # its tokens
    ours: int | None = None  # our hash, of the page that completes a block
    down: list[int] | None = None  # the pages after it in our block


class Pages:
    """`KnownBlocks` where `multiple` blocks of the engine make one of ours."""

    def __init__(self, block_tokens: int, multiple: int, limit: int) -> None:
        """`block_tokens`: ours. `limit`: pages that are known at most."""
        self._block_tokens = block_tokens
        self._multiple = multiple
        self._page_bytes = block_tokens // multiple * WIDTH
        self._room = limit
        self._shards: list[dict[int, _Page]] = [{} for _ in range(_SHARDS)]
        self._copies = Copies()

    def store(self, parent: int, hashes: Sequence[int], tokens: Sequence[int], place: int) -> Change:
        page = self._page(parent)
        if page is None:
            return Change((), len(hashes), UNKNOWN_PARENT)
        if page.ours is not None:
            return self.begin(page.ours, hashes, tokens, place)
        return self._store(page.seed, parent, page, hashes, tokens, place)

    def begin(self, root: int, hashes: Sequence[int], tokens: Sequence[int], place: int) -> Change:
        return self._store(root, None, None, hashes, tokens, place)

    def _store(
        self, seed: int, up: int | None, above: _Page | None, hashes: Sequence[int], tokens: Sequence[int], place: int
    ) -> Change:
        if len(hashes) > self._room:
            return Change((), len(hashes), FULL)
        try:
            varints = TokenIds.of(tokens).varints
        except (ValueError, TypeError):
            return Change((), len(hashes), TOKEN_IDS)
        size = self._page_bytes
        held: list[int] = []
        for number, block in enumerate(hashes):
            own = varints[number * size : (number + 1) * size]
            page = self._page(block)
            if page is None:
                if above is not None:
                    if above.down is None:
                        above.down = []
                    if len(above.down) >= _MOST_BRANCHES:
                        return Change(held, len(hashes) - number, FULL)
                    above.down.append(block)
                page = self._add(block, seed, up, above, own)
                if place:
                    self._copies.set_first(block, place)
                held += self._complete(block, page)
            elif (page.seed, page.up, page.varints) != (seed, up, own):
                return Change(held, len(hashes) - number, CONFLICT)
            elif self._copies.add(block, place):
                held += self._complete(block, page)
            if page.ours is None:
                up, above = block, page
            else:
                seed, up, above = page.ours, None, None
        return Change(held)

    def remove(self, hashes: Sequence[int], place: int) -> Change:
        gone: list[int] = []
        unknown = 0
        for block in hashes:
            page = self._page(block)
            left = -1 if page is None else self._copies.take(block, place)
            if left < 0:
                unknown += 1
            elif not left and page is not None:
                gone += self._complete(block, page)
                self._forget(block, page)
        return Change(gone, unknown, UNKNOWN_BLOCK)

    def _page(self, block: int) -> _Page | None:
        return self._shards[block & _MASK].get(block)

    def _add(self, block: int, seed: int, up: int | None, above: _Page | None, own: bytes) -> _Page:
        page = _Page(seed, 1 if above is None else above.at + 1, up, own)
        if page.at == self._multiple:
            parts = [own]
            before = above
            while before is not None:
                parts.append(before.varints)
                before = None if before.up is None else self._page(before.up)
            page.ours = extend(seed, b"".join(reversed(parts)), self._block_tokens)[0]
        self._shards[block & _MASK][block] = page
        self._room -= 1
        return page

    def _complete(self, block: int, page: _Page) -> list[int]:
        """Blocks of ours that hang on this page alone: all of their other pages have copies."""
        copies = self._copies
        up = page.up
        while up is not None:
            if not copies.any(up):
                return []
            above = self._page(up)
            assert above is not None  # kept while others build on it
            up = above.up
        found: list[int] = []
        below = [block]
        while below:
            at = below.pop()
            if at != block and not copies.any(at):
                continue
            here = self._page(at)
            assert here is not None  # taken off its parent when it was forgotten
            if here.ours is not None:
                found.append(here.ours)
            elif here.down:
                below += here.down
        return found

    def _forget(self, block: int, page: _Page) -> None:
        """It has no copy; it goes, and those before it that were only kept for it."""
        copies = self._copies
        while not page.down and not copies.any(block):
            copies.forget(block)
            del self._shards[block & _MASK][block]
            self._room += 1
            if page.up is None:
                return
            above = self._page(page.up)
            assert above is not None
            assert above.down is not None
            above.down.remove(block)
            block, page = page.up, above
