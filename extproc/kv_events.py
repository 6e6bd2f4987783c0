"""What engines say of their KV caches: which blocks were stored, which are gone. Plain data, whatever carried it.

The carriers' codecs (`engines/kv_events_…`) make it, `routing/kv_events/` learns from it what a worker holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

__all__ = ["Batch", "Cleared", "Event", "KvEventsError", "Removed", "Stored", "Tier", "Unusable", "namespace"]


class KvEventsError(Exception):
    """What came is no batch of events."""


class Tier(IntEnum):
    """Where an engine keeps blocks."""

    DEVICE = 0
    HOST = 1
    DISK = 2


class Stored(Struct, frozen=True, gc=False):
    """Newly allocated blocks, each the child of the one before it. A block that is used again is not reported again."""

    hashes: Sequence[int]  # the engine's own names of the blocks
    parent: int | None  # the engine's name of the block before the first; None: they begin a prompt
    tokens: Sequence[int]  # of all blocks, one after the other
    block_tokens: int
    tier: Tier = Tier.DEVICE
    group: int = 0  # of the KV cache; hybrid models have several
    kind: str | None = None  # of attention in that group, where the engine says
    namespace: str = ""  # what the engine hashed beside the tokens; counts where there is no parent
    ours: int | None = None  # only so many of the first blocks depend on nothing that a gateway cannot know


class Removed(Struct, frozen=True, gc=False):
    """One copy of each of these blocks is gone."""

    hashes: Sequence[int]
    tier: Tier = Tier.DEVICE
    group: int = 0


class Cleared(Struct, frozen=True, gc=False):
    """The cache is empty."""


class Unusable(Struct, frozen=True, gc=False):
    """An event that says nothing of what a worker holds, or that could not be read."""

    reason: str  # of a closed set, for the metrics


Event = Stored | Removed | Cleared | Unusable


class Batch(Struct, frozen=True, gc=False):
    """What one message carries: the events of one step of the engine, in order."""

    sequence: int  # one more than the batch before it, per rank
    timestamp_s: float  # when the engine made it, Unix time
    events: Sequence[Event]
    rank: int | None = None  # data-parallel; None: the engine does not say
    load_only: bool = False  # a record of the engine's load, which repeats the number of the last batch
    lacks: int | None = None  # a piece of all that the cache holds, without what so many lost batches stored


def namespace(lora: str | None, salt: str | None) -> str:
    """What is hashed beside the tokens, as one text: empty for nothing. Requests and events must agree on it."""
    if not lora and not salt:
        return ""
    return f"{len(lora or '')}:{lora or ''}{salt or ''}"
