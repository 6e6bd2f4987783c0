"""Workers as sources find them and as processors get them: plain data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from extproc.config.schema import Config, Pool


class Found(Struct, frozen=True, omit_defaults=True):
    """An engine that a source names."""

    address: str  # `ip:port`, IPv6 in brackets
    name: str | None = None
    ranks: int = 1


class Entry(Struct, frozen=True):
    """A worker of a pool, as all processors must see it."""

    address: str
    label: str
    source: str
    ranks: int = 1
    draining: bool = False  # by the operator's will, or because it goes
    wait_s: float = 0.0  # from the time that the roster comes until it may be a candidate


Roster = Mapping[str, Sequence[Entry]]
"""By the name of the pool; every pool is there."""


class SourceError(Exception):
    """A source does not say now; the text names it and what to look at. What it said before stays true."""


Tell = Callable[[Sequence[Found]], None]


class Source(Protocol):
    """Watches one place."""

    async def run(self, tell: Tell, problem: Callable[[str], None]) -> None:
        """Until cancelled: `tell` the whole list whenever it may have changed, and what stands in the way."""
        ...


Running = Callable[[], Awaitable[Mapping[tuple[str, str], int]]]
"""Requests that run now by pool and label (of a rank: its own), over all processes; what is not there is unknown."""


def static_workers(pool: Pool) -> list[Found]:
    """Those of a configuration whose names were looked up."""
    return [Found(str(worker.address), worker.name, worker.ranks) for worker in pool.workers]


def static_roster(config: Config) -> dict[str, tuple[Entry, ...]]:
    """Only those of the configuration."""
    return {
        pool.name: tuple(
            Entry(str(worker.address), worker.label, "configuration", worker.ranks) for worker in pool.workers
        )
        for pool in config.pools
    }
