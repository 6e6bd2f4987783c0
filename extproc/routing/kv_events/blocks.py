"""An engine's blocks as ours, where they have the same size: its hash → our chain hash.

A block is held while it has a copy at any place. What is known of a block depends only on its tokens, so a copy that
comes or goes changes no hash. Hot: one dict entry a block, 120 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from extproc.routing.blocks import extend
from extproc.routing.kv_events.copies import Copies
from extproc.token_ids import TokenIds

_SHARDS = 64
"""A dict copies all of its entries when it grows, 20 ms for half a million; these grow at different moments."""

_MASK = _SHARDS - 1


class Change(NamedTuple):
    """What an event means for the index. `dropped`: blocks that mean nothing, by one of `reasons`."""

    ours: Sequence[int]
    dropped: int = 0
    reason: str = ""


UNKNOWN_PARENT = "unknown_parent"
UNKNOWN_BLOCK = "unknown_block"
CONFLICT = "conflict"
FULL = "full"
TOKEN_IDS = "token_ids"  # noqa: S105 - a reason for the metrics


class KnownBlocks(Protocol):
    """Engine blocks that were stored and are not gone. No method raises, whatever events say."""

    def store(self, parent: int, hashes: Sequence[int], tokens: Sequence[int], place: int) -> Change:
        """Children of the block `parent`, one after the other. `ours`: those of ours that are held now."""
        ...

    def begin(self, root: int, hashes: Sequence[int], tokens: Sequence[int], place: int) -> Change:
        """The same, of blocks that begin a prompt in the namespace with this root."""
        ...

    def remove(self, hashes: Sequence[int], place: int) -> Change:
        """One copy of each is gone. `ours`: those of ours that are held no more."""
        ...


class SameBlocks:
    """`KnownBlocks` where an engine's block is one of ours."""

    def __init__(self, block_tokens: int, limit: int) -> None:
        """`limit`: blocks that are known at most; more are dropped."""
        self._block_tokens = block_tokens
        self._room = limit
        self._shards: list[dict[int, int]] = [{} for _ in range(_SHARDS)]
        self._copies = Copies()

    def store(self, parent: int, hashes: Sequence[int], tokens: Sequence[int], place: int) -> Change:
        chain = self._shards[parent & _MASK].get(parent)
        if chain is None:
            return Change((), len(hashes), UNKNOWN_PARENT)
        return self.begin(chain, hashes, tokens, place)

    def begin(self, root: int, hashes: Sequence[int], tokens: Sequence[int], place: int) -> Change:
        if len(hashes) > self._room:
            return Change((), len(hashes), FULL)
        try:
            chains = extend(root, TokenIds.of(tokens).varints, self._block_tokens)
        except (ValueError, TypeError):
            return Change((), len(hashes), TOKEN_IDS)
        shards = self._shards
        new: list[int] = []
        conflicts = 0
        for block, chain in zip(hashes, chains, strict=False):
            shard = shards[block & _MASK]
            known = shard.setdefault(block, chain)
            if known is chain:  # this very number, so the block is new
                new.append(chain)
                if place:
                    self._copies.set_first(block, place)
            elif known == chain:
                self._copies.add(block, place)
            else:
                conflicts += 1
        self._room -= len(new)
        return Change(new, conflicts, CONFLICT)

    def remove(self, hashes: Sequence[int], place: int) -> Change:
        shards, copies, others = self._shards, self._copies, self._copies.others
        gone: list[int] = []
        unknown = 0
        for block in hashes:
            shard = shards[block & _MASK]
            if block not in shard:
                unknown += 1
                continue
            if not place and block not in others:  # one copy, here
                gone.append(shard.pop(block))
                continue
            left = copies.take(block, place)
            if left < 0:
                unknown += 1
            elif not left:
                copies.forget(block)
                gone.append(shard.pop(block))
        self._room += len(gone)
        return Change(gone, unknown, UNKNOWN_BLOCK)
