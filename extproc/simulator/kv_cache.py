"""The KV cache in blocks, with prefix reuse as vLLM's block pool has it.

A block is full or not in here at all. Its hash chains over everything before it, so a block is reused only after the
same prefix. The last token of a prompt is always computed, hence at most (prompt - 1) // block blocks match. Blocks
that no sequence holds are the room for new ones, least recently released first, the tail of a chain before its head.
One hash may have several physical blocks: those that computed the same prefix at the same time, and a prompt's last
block when the prompt ends with it.

This is also the one place where blocks are stored, evicted and cleared, each in one method: what KV events report.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol


class Watcher(Protocol):
    """Who is told of every physical block."""

    def stored(self, block_hash: int, parent: int, tokens: Sequence[int]) -> None:
        """A new block; `parent` 0: it is the first of its prompt."""
        ...

    def removed(self, block_hash: int) -> None:
        """One block with this hash gave way."""
        ...

    def cleared(self) -> None:
        """All are gone."""
        ...


class Block:
    """One physical block."""

    __slots__ = ("block_hash", "holders")

    def __init__(self, block_hash: int) -> None:
        self.block_hash = block_hash
        self.holders = 1


class Lease:
    """The blocks that one sequence holds, in the order of its tokens. Ended by `KvCache.release`."""

    __slots__ = ("blocks", "cached_tokens", "parent_hash", "pending")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.cached_tokens = 0
        self.parent_hash = 0  # of the last full block; 0 before the first
        self.pending: list[int] = []  # tokens behind the last full block


class KvCache:
    """Blocks by hash. Capacity 0 keeps nothing."""

    def __init__(self, capacity_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.capacity_blocks = capacity_tokens // block_tokens
        self._by_hash: dict[int, list[Block]] = {}
        self._released: OrderedDict[Block, None] = OrderedDict()  # held by nobody; the first goes first
        self._blocks = 0
        self.watcher: Watcher | None = None

    @property
    def blocks(self) -> int:
        """Blocks that exist."""
        return self._blocks

    @property
    def held_blocks(self) -> int:
        """Blocks that running sequences need, and that therefore cannot be evicted."""
        return self._blocks - len(self._released)

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        """How much of a prompt would be reused now. Changes nothing."""
        return len(self._match(prompt)) * self.block_tokens

    def lease(self, prompt: Sequence[int]) -> Lease:
        """Hold the blocks of a prompt that are there. The rest is pending until `extend` says that it was computed."""
        lease = Lease()
        if not self.capacity_blocks:
            return lease
        matched = self._match(prompt)
        for block in matched:
            if not block.holders:
                del self._released[block]
            block.holders += 1
        if matched:
            lease.blocks = matched
            lease.parent_hash = matched[-1].block_hash
            lease.cached_tokens = len(matched) * self.block_tokens
        lease.pending = list(prompt[lease.cached_tokens :])
        return lease

    def extend(self, lease: Lease, tokens: Sequence[int] = ()) -> None:
        """What is pending and `tokens` after it are computed; each block that they fill is stored."""
        if not self.capacity_blocks:
            return
        pending = lease.pending
        pending += tokens
        block_tokens = self.block_tokens
        filled = len(pending) // block_tokens * block_tokens
        if not filled:
            return
        parent = lease.parent_hash
        watcher = self.watcher
        for start in range(0, filled, block_tokens):
            block = pending[start : start + block_tokens]
            block_hash = _chain_hash(parent, block)
            if self._store(block_hash, lease.blocks) and watcher is not None:
                watcher.stored(block_hash, parent, block)
            parent = block_hash
        lease.parent_hash = parent
        del pending[:filled]

    def fork(self, lease: Lease) -> Lease:
        """A second sequence on the same blocks, as for n > 1."""
        copy = Lease()
        copy.blocks = list(lease.blocks)
        copy.cached_tokens = lease.cached_tokens
        copy.parent_hash = lease.parent_hash
        copy.pending = list(lease.pending)
        for block in copy.blocks:
            block.holders += 1
        return copy

    def release(self, lease: Lease) -> None:
        """End a lease. Its blocks stay until their room is needed."""
        for block in reversed(lease.blocks):
            block.holders -= 1
            if not block.holders:
                self._released[block] = None
        lease.blocks = []
        lease.pending = []

    def clear(self) -> bool:
        """Forget everything. Refused (False) while sequences hold blocks."""
        if self.held_blocks:
            return False
        self._by_hash.clear()
        self._released.clear()
        self._blocks = 0
        if self.watcher is not None:
            self.watcher.cleared()
        return True

    def _match(self, prompt: Sequence[int]) -> list[Block]:
        block_tokens = self.block_tokens
        by_hash = self._by_hash
        matched: list[Block] = []
        parent = 0
        for start in range(0, (len(prompt) - 1) // block_tokens * block_tokens, block_tokens):
            parent = _chain_hash(parent, prompt[start : start + block_tokens])
            copies = by_hash.get(parent)
            if copies is None:
                break
            matched.append(copies[0])
        return matched

    def _store(self, block_hash: int, held: list[Block]) -> bool:
        """A newly computed block. Where every block is held, it has no room and is not kept: False."""
        if self._blocks >= self.capacity_blocks and not self._evict():
            return False
        block = Block(block_hash)
        self._by_hash.setdefault(block_hash, []).append(block)
        self._blocks += 1
        held.append(block)
        return True

    def _evict(self) -> bool:
        if not self._released:
            return False
        block, _ = self._released.popitem(last=False)
        copies = self._by_hash[block.block_hash]
        copies.remove(block)
        if not copies:
            del self._by_hash[block.block_hash]
        self._blocks -= 1
        if self.watcher is not None:
            self.watcher.removed(block.block_hash)
        return True


def _chain_hash(parent: int, tokens: Sequence[int]) -> int:
    """A block's hash: 64 bits with sign, equal in every process, since Python hashes integers without a random seed."""
    return hash((parent, tuple(tokens)))
