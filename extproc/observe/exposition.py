"""Metric families as plain data, and as Prometheus text (version 0.0.4).

Plain, because a supervisor gets them from other processes and adds them up. Rendering goes in slices: a large fleet has
tens of thousands of lines, and the event loop has requests to serve meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from time import perf_counter

from msgspec import Struct
from prometheus_client import CollectorRegistry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SLICE_S = 0.001

Labels = tuple[tuple[str, str], ...]


class Sample(Struct, frozen=True, array_like=True, gc=False):
    """One line: name with suffix, labels in their order, value."""

    name: str
    labels: Labels
    value: float


class Family(Struct, frozen=True, array_like=True):
    """One metric with its samples."""

    name: str  # as the text has it in TYPE and HELP: a counter's ends in _total
    kind: str  # counter, gauge, histogram …
    documentation: str
    samples: list[Sample]


def families(registry: CollectorRegistry) -> Iterator[Family]:
    """What a registry collects, one by one."""
    for metric in registry.collect():
        name = metric.name
        if metric.type == "counter":
            name += "_total"
        samples = [
            Sample(sample.name, tuple(sample.labels.items()), float(sample.value))
            for sample in metric.samples
            if not sample.name.endswith("_created")
        ]
        yield Family(name, metric.type, metric.documentation, samples)


async def render(source: Iterable[Family]) -> bytes:
    """The text, made in slices of about a millisecond."""
    out: list[str] = []
    until_s = perf_counter() + _SLICE_S
    for family in source:
        out.append(f"# HELP {family.name} {_escaped(family.documentation)}\n# TYPE {family.name} {family.kind}\n")
        for at, sample in enumerate(family.samples):
            out.append(_line(sample))
            if not at & 63 and perf_counter() > until_s:
                await asyncio.sleep(0)
                until_s = perf_counter() + _SLICE_S
    return "".join(out).encode()


def _line(sample: Sample) -> str:
    value = repr(sample.value)  # finite, so as Go reads it
    if not sample.labels:
        return f"{sample.name} {value}\n"
    labels = ",".join([f'{name}="{_quoted(text)}"' for name, text in sample.labels])
    return f"{sample.name}{{{labels}}} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
