"""The longest turn of the event loop that one request makes, by its size: CPU time of the loop's thread, in ms.

Each message of Envoy's is one turn here, and so is each step of what is awaited. Real text, new each time.

Run: python benchmarks/bench_loop.py [--requests N]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Generator
from statistics import median
from time import thread_time
from typing import Any, Generic, TypeVar

from in_process import InProcess, Prompts, request

from extproc.exchange.exchange import State
from extproc.supervisor.process import settle_memory

SIZES_KB = (1, 5, 20, 50, 100, 200)
TURNS = (1, 51, 201)
_T = TypeVar("_T")


class Timed(Generic[_T]):
    """An awaitable of which each step's CPU time is noted."""

    def __init__(self, awaitable: Awaitable[_T], steps_s: list[float]) -> None:
        self._awaitable = awaitable
        self._steps_s = steps_s

    def __await__(self) -> Generator[Any, None, _T]:
        steps = self._awaitable.__await__()
        while True:
            started = thread_time()
            try:
                waits_for = next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self._steps_s.append(thread_time() - started)
            yield waits_for


async def one(gateway: InProcess, body: bytes) -> tuple[float, bool]:
    """The longest turn of one request, and whether it was awaited."""
    steps_s: list[float] = []
    messages = request(body)
    exchange = gateway.exchange()
    for message in messages:
        started = thread_time()
        exchange.receive(message)
        steps_s.append(thread_time() - started)
    pending = exchange.pending
    if pending is not None:
        outcome = await Timed(pending, steps_s)
        started = thread_time()
        exchange.resume(outcome)
        steps_s.append(thread_time() - started)
    assert exchange.state is State.FORWARDED
    exchange.close()
    return max(steps_s), pending is not None


async def run(requests: int) -> None:
    """Print the table."""
    gateway = await InProcess.load()
    prompts = Prompts()
    settle_memory()
    print(f"{'body':>8} {'turns':>6} {'median':>8} {'longest':>8}   awaited")
    for size_kb in SIZES_KB:
        for turns in TURNS:
            if size_kb * 1000 < turns * 60:
                continue
            bodies = [prompts.body(size_kb * 1000, turns) for _ in range(requests)]
            results = [await one(gateway, body) for body in bodies]
            times_ms = [1000 * took_s for took_s, _ in results]
            awaited = sum(waited for _, waited in results) * 100 // requests
            print(f"{size_kb:5} KB {turns:6} {median(times_ms):8.2f} {max(times_ms):8.2f}   {awaited} %")
    await gateway.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100)
    asyncio.run(run(parser.parse_args().requests))
