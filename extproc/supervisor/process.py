"""One processor in this process: from start, through signals, to a graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import signal
from collections.abc import AsyncIterator
from typing import Protocol

from extproc.config.address import HostPort
from extproc.config.schema import Config
from extproc.discovery.admin import Fleetwide, WorkersAdmin
from extproc.gateway.processor import Processor
from extproc.observe.admin import AdminServer, Source
from extproc.transport.serving import TransportName

GC_THRESHOLDS = (10_000, 10, 1_000)
"""Chosen by benchmarks/bench_collector.py; docs/performance.md has the figures."""


class Administered(Source, Fleetwide, Protocol):
    """What an admin address is about: one processor, or a supervisor of several."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks for a graceful stop, the second cuts it short."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def serve_alone(config: Config, transport: TransportName, settle_s: float) -> None:
    """Serve in this process until a signal. Raises ResolveError, ListenError, OSError."""
    signals = StopSignals()
    processor = Processor(config, transport)
    async with stopped_at_the_end(processor), admin_server(config, processor):
        await processor.start()
        await serve_until_stopped(processor, signals, settle_s, config.limits.drain_s)


async def serve_until_stopped(processor: Processor, signals: StopSignals, settle_s: float, drain_s: float) -> None:
    """Serve with a processor that has started, then stop it in order; at once where the second signal comes."""
    settle_memory()
    settling = asyncio.create_task(_settle_when_ready(processor))
    try:
        await signals.stop.wait()
    finally:
        settling.cancel()
    stop = asyncio.create_task(processor.stop(settle_s=settle_s, grace_s=drain_s))
    hurry = asyncio.create_task(signals.hurry.wait())
    try:
        await asyncio.wait({stop, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            stop.result()
    finally:
        # What a cut stop leaves is ended by who started the processor.
        for task in (stop, hurry):
            task.cancel()
        await asyncio.wait({stop, hurry})


@contextlib.asynccontextmanager
async def stopped_at_the_end(processor: Processor) -> AsyncIterator[None]:
    """Nothing of the processor is left, whatever happens inside."""
    try:
        yield
    finally:
        await processor.stop(settle_s=0.0, grace_s=0.0)


@contextlib.asynccontextmanager
async def admin_server(config: Config, source: Administered) -> AsyncIterator[None]:
    """Serves metrics, health and `/workers` where the configuration wants it. Raises OSError with the address."""
    address = config.listen.metrics
    if address is None:
        yield
        return
    workers = WorkersAdmin(source, config.listen.admin_token, open_to_all=address.is_loopback)
    server = AdminServer(source, {"workers": workers.answer})
    try:
        await server.start(address.host, address.port)
    except OSError as error:
        raise _in_use(address, error) from error
    try:
        yield
    finally:
        await server.stop()


def _in_use(address: HostPort, error: OSError) -> OSError:
    reason = error.strerror or str(error)
    return OSError(error.errno, f"listen.metrics {address}: {reason}; choose another address, or null for none")


async def _settle_when_ready(processor: Processor) -> None:
    await processor.ready.wait()
    gc.freeze()  # tokenizers that came late; requests that are under way are freed all the same


def settle_memory() -> None:
    """Take what has been loaded out of the garbage collector's sight, let it look less often, and free what is unused.

    Modules, templates and tables live as long as the process: a full collection, which would only walk over them, takes
    10 ms in place of 150 ms with 2,000 exchanges open. Requests leave no cycles, so it is also rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        # What loading has freed goes back to the system now: else some request would stop for 8 ms to do it.
        ctypes.CDLL(None).malloc_trim(0)
