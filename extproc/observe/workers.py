"""How workers are, read from metrics: so one process and several that are added up say it in the same way."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from extproc.observe.exposition import Family

READY = "extproc_worker_ready"
RUNNING = "extproc_worker_running_requests"
WAITING = "extproc_worker_waiting_tokens"


class WorkerFigures(Struct):
    """Of one worker, over all processes."""

    ready: bool = False
    running_requests: int = 0
    waiting_tokens: int = 0


def worker_figures(families: Iterable[Family]) -> dict[tuple[str, str], WorkerFigures]:
    """By pool and label."""
    figures: dict[tuple[str, str], WorkerFigures] = {}
    for family in families:
        if family.name not in (READY, RUNNING, WAITING):
            continue
        for sample in family.samples:
            labels = dict(sample.labels)
            of_worker = figures.setdefault((labels["pool"], labels["worker"]), WorkerFigures())
            if family.name == READY:
                of_worker.ready = sample.value > 0
            elif family.name == RUNNING:
                of_worker.running_requests = int(sample.value)
            else:
                of_worker.waiting_tokens = int(sample.value)
    return figures
