"""What is counted of one pool's KV events. Plain numbers, read when metrics are asked for."""

from __future__ import annotations

from collections import Counter

LOSSES = ("gap", "lost", "ended", "refused", "unreadable", "restarted")
"""Why all that the events of a worker had said is void: a number was missing and could not be asked for, the engine
says so, the stream ended, it could not be opened, it brought what is no batch or too much at once, the engine
restarted."""


class Figures:
    """Counts since the start, and the newest lag of each worker."""

    __slots__ = ("batches", "cleared", "dropped", "lag_s", "losses", "removed", "stored")

    def __init__(self) -> None:
        self.batches = 0
        self.stored = 0  # blocks
        self.removed = 0  # blocks
        self.cleared = 0  # events
        self.dropped: Counter[str] = Counter()  # blocks, or events where their blocks are not known, by reason
        self.losses: Counter[str] = Counter()
        self.lag_s: dict[str, float] = {}  # by worker: from the engine's step to here
