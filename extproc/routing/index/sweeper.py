"""The background work of indexes, in short turns of the event loop."""

from __future__ import annotations

import asyncio

from extproc.routing.index.index import PrefixIndex

__all__ = ["Sweeper"]


class Sweeper:
    """Sweeps the indexes that it made while they have something to sweep: `turn_s` every `pause_s`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, turn_s: float = 0.001, pause_s: float = 0.02) -> None:
        self._loop = loop
        self._turn_s = turn_s
        self._pause_s = pause_s
        self._indexes: list[PrefixIndex] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def index(self) -> PrefixIndex:
        """A new index, swept until `forget` or `close`."""
        index = PrefixIndex(self._wake)
        self._indexes.append(index)
        return index

    def forget(self, index: PrefixIndex) -> None:
        """Its pool is gone."""
        self._indexes.remove(index)

    def close(self) -> None:
        """No more turns."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(self._pause_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        for _ in range(len(self._indexes)):
            index = self._indexes.pop(0)
            self._indexes.append(index)  # each in turn
            if index.sweep(self._turn_s):
                self._wake()
                return
