"""Adds up metrics of several processes.

Counters and histograms are sums, and stay sums when a process ends: what it had counted last is kept, since a total
that falls would look to Prometheus like a restart of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.observe.exposition import Family, Labels, Sample

_LARGEST = frozenset(
    {"extproc_event_loop_longest_turn_seconds", "extproc_tokenizer_info", "extproc_kv_event_lag_seconds"}
)
_SMALLEST = frozenset({"extproc_worker_ready", "process_start_time_seconds", "process_max_fds"})
"""Gauges of which a sum means nothing: of a worker, whether all processes may choose it. All others are sums."""

_KEPT = frozenset({"counter", "histogram"})


def add_up(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """One family for each name, in the order in which they come."""
    known: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, Labels], float]] = {}
    for part in parts:
        for family in part:
            name = family.name
            known.setdefault(name, family)
            into = values.setdefault(name, {})
            for sample in family.samples:
                key = (sample.name, sample.labels)
                value = sample.value
                if key in into:
                    if name in _LARGEST:
                        value = max(value, into[key])
                    elif name in _SMALLEST:
                        value = min(value, into[key])
                    else:
                        value += into[key]
                into[key] = value
    return [
        Family(
            name,
            family.kind,
            family.documentation,
            [Sample(sample, labels, value) for (sample, labels), value in values[name].items()],
        )
        for name, family in known.items()
    ]


class Retired:
    """What processes that are no more have counted."""

    def __init__(self) -> None:
        self.families: list[Family] = []

    def add(self, last: Iterable[Family]) -> None:
        """A process has ended; these are the metrics that it told last."""
        kept = [family for family in last if family.kind in _KEPT]
        self.families = add_up([self.families, kept])
