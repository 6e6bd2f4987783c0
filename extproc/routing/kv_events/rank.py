"""One rank's KV cache as its events tell it, and the order in which they must come.

    batch                              step        what it means
    a number more than the last        NEXT        its events are applied
    the first of all                   NEXT        the same; 0: nothing has been missed since the engine's start
    a piece of a snapshot              NEXT        the same, and its number is the last
    only a record of the load          LOAD        nothing: it repeats the last number
    the last number or an earlier one  REPEATED    nothing, where it is the last one; else as a gap
    any other                          GAP         batches are missing: all that was known is void

Whoever gets a GAP asks for what is missing, or calls `void` and begins anew. After a `void` the cache is unknown and
not empty: blocks stored before have parents that nobody knows, so they are counted and dropped, and only a whole life
of the engine, a `Cleared` or a snapshot makes the knowledge complete again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from extproc.kv_events import Batch, Cleared, Event, Removed, Stored
from extproc.routing.blocks import root
from extproc.routing.index import PrefixIndex, Slot
from extproc.routing.kv_events.blocks import Change, KnownBlocks, SameBlocks
from extproc.routing.kv_events.figures import Figures
from extproc.routing.kv_events.pages import Pages

MOST_BLOCKS = 2_000_000
"""Blocks of one rank that are known at most: 32 million tokens at 16 a block, and 300 MB."""

_MAIN_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Of attention (vLLM's names): every token sees all before it, so that a prefix is reused as a whole or not at all."""

_MOST_GROUPS = 64
_MOST_ROOTS = 256  # kept; more are computed each time
_OTHER = -1  # the place of groups that say nothing of a prefix
_TIERS = 3


class Step(Enum):
    """What a batch was."""

    NEXT = "next"
    LOAD = "load"
    REPEATED = "repeated"
    GAP = "gap"


class Rank:
    """Feeds one slot of the index."""

    def __init__(
        self,
        index: PrefixIndex,
        slot: Slot,
        block_tokens: int,
        figures: Figures,
        completed: Callable[[bool], None] = lambda complete: None,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        """`block_tokens`: ours. `completed` is told when all that the cache holds is known, and when no more."""
        self._index = index
        self._slot = slot
        self._block_tokens = block_tokens
        self._figures = figures
        self._completed = completed
        self._most_blocks = most_blocks
        self._roots: dict[str, int] = {}
        self.last: int | None = None
        """The number of the last batch."""
        self.complete = False
        self._forget()

    def _forget(self) -> None:
        self._blocks: KnownBlocks | None = None  # made when the size of the engine's is known
        self._engine_tokens = 0
        self._groups: dict[int, int] = {}  # its number; _OTHER: no full attention

    def take(self, batch: Batch) -> Step:
        """Apply a batch if it is the next one."""
        if batch.load_only:
            return Step.LOAD
        last, sequence = self.last, batch.sequence
        if last is not None and sequence != last + 1 and batch.lacks is None:
            return Step.REPEATED if sequence == last else Step.GAP
        self.last = sequence
        if last is None and sequence == 0:
            self._is_complete(True)
        self._figures.batches += 1
        for event in batch.events:
            self._apply(event)
        if batch.lacks and self.complete:
            self._is_complete(False)
        return Step.NEXT

    def void(self, cause: str) -> None:
        """Batches were lost, or a new stream begins: what was known may be wrong. Which number comes next is open."""
        self._figures.losses[cause] += 1
        self.last = None
        self._index.clear_precise(self._slot)
        self._forget()
        self._is_complete(False)

    def _is_complete(self, complete: bool) -> None:
        if complete is not self.complete:
            self.complete = complete
            self._completed(complete)

    def _apply(self, event: Event) -> None:
        kind = type(event)
        if kind is Stored:
            self._stored(event)  # type: ignore[arg-type]
        elif kind is Removed:
            self._removed(event)  # type: ignore[arg-type]
        elif kind is Cleared:
            self._figures.cleared += 1
            self._index.clear(self._slot)
            self._forget()
            self._is_complete(True)
        else:
            self._figures.dropped[event.reason] += 1  # type: ignore[union-attr]

    def _stored(self, event: Stored) -> None:
        """Hot: 5 us for two blocks."""
        hashes, tokens = event.hashes, event.tokens
        count = len(hashes)
        place = self._place(event.group, event.kind, event.tier)
        if place < 0:
            self._drop(count, "other_attention")
            return
        blocks = self._blocks
        if blocks is None:
            blocks = self._learn(event.block_tokens)
        if blocks is None or event.block_tokens != self._engine_tokens:
            self._drop(count, "block_size")
            return
        if len(tokens) != count * event.block_tokens:
            self._drop(count, "malformed")
            return
        ours = event.ours
        if ours is not None and ours < count:
            self._drop(count - ours, "foreign_keys")
            hashes, tokens = hashes[:ours], tokens[: ours * event.block_tokens]
        parent = event.parent
        if parent is None:
            change = blocks.begin(self._root(event.namespace), hashes, tokens, place)
        else:
            change = blocks.store(parent, hashes, tokens, place)
        self._figures.stored += len(hashes) - change.dropped
        if change.dropped:
            self._drop(change.dropped, change.reason)
        if change.ours:
            self._index.stored(self._slot, change.ours)

    def _removed(self, event: Removed) -> None:
        hashes = event.hashes
        number = self._groups.get(event.group, 0)
        blocks = self._blocks
        if number == _OTHER:
            self._drop(len(hashes), "other_attention")
            return
        change = (
            Change((), len(hashes), "unknown_block")
            if blocks is None
            else blocks.remove(hashes, number * _TIERS + event.tier)
        )
        self._figures.removed += len(hashes) - change.dropped
        if change.dropped:
            self._drop(change.dropped, change.reason)
        if change.ours:
            self._index.removed(self._slot, change.ours)

    def _drop(self, blocks: int, reason: str) -> None:
        self._figures.dropped[reason] += blocks

    def _place(self, group: int, kind: str | None, tier: int) -> int:
        """Where copies are counted; negative for groups that say nothing of a prefix."""
        number = self._groups.get(group)
        if number is None:
            if len(self._groups) >= _MOST_GROUPS:
                return _OTHER
            main = kind is None or kind in _MAIN_KINDS
            number = sum(each != _OTHER for each in self._groups.values()) if main else _OTHER
            self._groups[group] = number
        return number * _TIERS + tier if number >= 0 else _OTHER

    def _learn(self, engine_tokens: int) -> KnownBlocks | None:
        """The engine's block size, with its first event. None for one that does not go into ours."""
        if engine_tokens <= 0 or self._block_tokens % engine_tokens:
            return None
        multiple = self._block_tokens // engine_tokens
        self._engine_tokens = engine_tokens
        self._blocks = (
            SameBlocks(self._block_tokens, self._most_blocks)
            if multiple == 1
            else Pages(self._block_tokens, multiple, self._most_blocks)
        )
        return self._blocks

    def _root(self, namespace: str) -> int:
        roots = self._roots
        found = roots.get(namespace)
        if found is None:
            found = root(namespace, self._block_tokens)
            if len(roots) < _MOST_ROOTS:
                roots[namespace] = found
        return found
