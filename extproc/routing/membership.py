"""Who belongs to a pool now: workers come, drain, restart and go while requests run, and whoever must know is told.

Observers hold what belongs to a worker: health checks and control channels, slots of the prefix index, subscriptions
to KV events. They are called in the event loop, must not block and must not raise. A worker that comes again after it
left is a new `Worker`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from msgspec import Struct

from extproc.routing.breaker import Breaker, CallLater
from extproc.routing.worker import Worker

_LEAST_SHARE = 0.1
"""Of the requests that it might get, what a worker gets at the beginning of its slow start."""


class WorkerSpec(Struct, frozen=True):
    """One engine of a pool as its source names it."""

    address: str  # `ip:port`, IPv6 in brackets
    label: str  # unique in its pool
    ranks: int = 1  # data-parallel ranks to choose from, each a target of its own; 1: the engine is one target
    draining: bool = False
    wait_s: float = 0.0  # until it may be a candidate, from now


class Observer(Protocol):
    """Who must know. `left` is the last that it hears of a worker; `restarted` may come any number of times between."""

    def joined(self, worker: Worker) -> None:
        """It is in the pool, and no candidate yet."""
        ...

    def restarted(self, worker: Worker) -> None:
        """Its engine has begun anew, `worker.incarnation` has gone up: its cache is empty."""
        ...

    def left(self, worker: Worker) -> None:
        """It will never be chosen again. Requests may still run on it."""
        ...


class Resilience(Struct, frozen=True):
    """When workers are kept out, or get less, for what they did."""

    breaker_failures: int = 0  # in a row; 0: no breaker
    breaker_open_s: float = 5.0
    slow_start_s: float = 0.0  # a worker that becomes ready gets its full share after so long


class Membership:
    """A pool's workers. `workers` and `candidates` are replaced and never changed, so they may be kept and compared."""

    def __init__(
        self,
        workers: Iterable[Worker] = (),
        resilience: Resilience | None = None,
        call_later: CallLater | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`call_later` is needed where there are breakers."""
        self._resilience = resilience or Resilience()
        self._call_later = call_later
        self._clock = clock
        self._observers: list[Observer] = []
        self.workers: tuple[Worker, ...] = ()
        self._changing = 0  # how many `together` are under way
        self._changed = False  # since the first of them
        self.candidates: tuple[Worker, ...] = ()
        """Workers that may be chosen now, each worth a full share."""
        self.warming: tuple[Worker, ...] = ()
        """Candidates in their slow start."""
        self.trials: tuple[Worker, ...] = ()
        """Candidates that get one request to show that they are back."""
        self.candidates_changed: Callable[[], None] | None = None
        """Called when `candidates` have, where somebody waits for that."""
        self._by_address: dict[str, Worker] = {}
        self._add(list(workers))

    def observe(self, observer: Observer) -> None:
        """Tell `observer` of the present workers, and of every change from now on."""
        self._observers.append(observer)
        for worker in self.workers:
            observer.joined(worker)

    def find(self, address: str) -> Worker | None:
        """The worker at an address; its first rank where there are several."""
        return self._by_address.get(address)

    def update(self, specs: Sequence[WorkerSpec]) -> None:
        """The pool is these from now on. Workers whose address and ranks stay are kept, with all that is known."""
        wanted = {(spec.address, rank): spec for spec in specs for rank in _ranks(spec)}
        present = {(worker.address, worker.rank): worker for worker in self.workers}
        gone = [worker for key, worker in present.items() if key not in wanted]
        with self.together():
            for key, spec in wanted.items():
                kept = present.get(key)
                if kept is not None:
                    kept.label = _label(spec, kept.rank)
                    kept.draining = spec.draining
        now_s = self._clock()
        new = [_worker(spec, key[1], now_s) for key, spec in wanted.items() if key not in present]
        if gone:
            self._remove(gone)
        if new:
            self._add(new)

    def restarted(self, worker: Worker) -> None:
        """Somebody has seen that the worker's engine began anew."""
        worker.incarnation += 1
        for observer in self._observers:
            observer.restarted(worker)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several workers change: who may be chosen is found out once, at the end. Engines have up to 1,024 ranks."""
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
            if self._changed and not self._changing:
                self._changed = False
                self._refresh()

    def thinned(self) -> Sequence[Worker]:
        """Candidates, those in their slow start only as often as they are warm; for when there is any."""
        now_s = self._clock()
        length_s = self._resilience.slow_start_s
        out = set()
        done = False
        for worker in self.warming:
            since_s = worker.ready_since_s
            share = 1.0 if since_s is None else (now_s - since_s) / length_s
            if share >= 1.0:
                worker.ready_since_s = None
                done = True
            elif random.random() > max(share, _LEAST_SHARE):  # noqa: S311 - no secret depends on it
                out.add(worker)
        if done:
            self._refresh()
        return [worker for worker in self.candidates if worker not in out] or self.candidates

    def close(self) -> None:
        """Stop what runs for workers."""
        for worker in self.workers:
            _release(worker)

    def _add(self, new: list[Worker]) -> None:
        resilience = self._resilience
        for worker in new:
            if resilience.breaker_failures:
                assert self._call_later is not None
                worker.breaker = Breaker(
                    resilience.breaker_failures, resilience.breaker_open_s, self._call_later, self._refresh
                )
            worker.watch(self._refresh)
        with self.together():
            self._set((*self.workers, *new))
            for observer in self._observers:
                for worker in new:
                    observer.joined(worker)

    def _remove(self, gone: list[Worker]) -> None:
        left = set(gone)
        with self.together():
            for worker in gone:
                worker.draining = True
                _release(worker)
            self._set(tuple([worker for worker in self.workers if worker not in left]))
        for observer in self._observers:
            for worker in gone:
                observer.left(worker)

    def _set(self, workers: tuple[Worker, ...]) -> None:
        self.workers = workers
        by_address: dict[str, Worker] = {}
        for worker in workers:
            by_address.setdefault(worker.address, worker)
        self._by_address = by_address
        self._refresh()

    def _refresh(self) -> None:
        """Who may be chosen has changed, or may have."""
        if self._changing:
            self._changed = True
            return
        before = set(self.candidates)
        candidates = tuple([worker for worker in self.workers if worker.selectable])
        if self._resilience.slow_start_s:
            for worker in candidates:
                if worker not in before:
                    worker.ready_since_s = self._clock()
            self.warming = tuple([worker for worker in candidates if worker.ready_since_s is not None])
        self.trials = tuple([worker for worker in candidates if worker.on_trial])
        self.candidates = candidates
        if self.candidates_changed is not None:
            self.candidates_changed()


def _ranks(spec: WorkerSpec) -> Iterable[int | None]:
    return (None,) if spec.ranks == 1 else range(spec.ranks)


def _label(spec: WorkerSpec, rank: int | None) -> str:
    return spec.label if rank is None else f"{spec.label}#{rank}"


def _worker(spec: WorkerSpec, rank: int | None, now_s: float) -> Worker:
    worker = Worker(_label(spec, rank), spec.address, rank)
    worker.not_before_s = now_s + spec.wait_s
    worker.draining = spec.draining
    return worker


def _release(worker: Worker) -> None:
    worker.watch(lambda: None)
    if worker.breaker is not None:
        worker.breaker.close()
