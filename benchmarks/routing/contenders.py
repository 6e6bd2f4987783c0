"""Who routes, and how each is told that time runs faster than the clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Contender(StrEnum):
    """A gateway in one setting."""

    TTFT = "ttft"
    """Ours, as it is by default."""
    LEAST_LOAD = "least_load"
    """Ours: fewest prompt tokens dispatched and not yet answered, blind to caches."""
    ROUND_ROBIN = "round_robin"
    """Ours: each in turn."""
    SMG_EVENTS = "smg-events"
    """SMG with its default policy, and engines that publish KV events."""
    SMG = "smg"
    """SMG with its default policy, and engines without KV events."""


OURS = (Contender.TTFT, Contender.LEAST_LOAD, Contender.ROUND_ROBIN)
PEERS = (Contender.SMG_EVENTS, Contender.SMG)
WITH_EVENTS = (*OURS, Contender.SMG_EVENTS)


@dataclass(frozen=True, slots=True)
class _Interval:
    option: str
    default: float  # seconds, or milliseconds where the option's name says so


_SMG_INTERVALS = (
    _Interval("--load-monitor-interval", 10),
    _Interval("--worker-stall-secs", 2),
    _Interval("--worker-wedge-secs", 3),
    _Interval("--worker-stale-secs", 15),
    _Interval("--worker-warmup-secs", 60),
    _Interval("--eviction-interval-secs", 60),
    _Interval("--health-check-interval-secs", 60),
    _Interval("--cb-timeout-duration-secs", 60),
    _Interval("--cb-window-duration-secs", 120),
    _Interval("--retry-initial-backoff-ms", 50),
    _Interval("--retry-max-backoff-ms", 30_000),
)
"""Everything that SMG 1.13 does by the clock and lets one set, with its defaults."""


def smg_intervals(speed_up: float) -> list[str]:
    """SMG's options for time that runs faster. They are whole numbers, hence at least 1."""
    options: list[str] = []
    for interval in _SMG_INTERVALS if speed_up != 1 else ():
        options += [interval.option, str(max(1, round(interval.default / speed_up)))]
    return options
