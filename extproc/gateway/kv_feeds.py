"""Subscriptions to the KV events of a pool's workers: opened, followed, opened again, and fed to the prefix index.

Whatever breaks the order of a worker's events voids what they had said; then it is asked for anew, a moment later the
next time. A worker whose events are all known since its cache was empty is told to the prefixes as one `with_events`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter, time
from typing import Protocol

from extproc.config.address import HostPort, parse_listen
from extproc.config.fleet import KvEvents
from extproc.engines import kv_events_grpc, kv_events_msgpack
from extproc.engines.kv_events_zmq import Publisher, ZmqSubscription
from extproc.kv_events import Batch, KvEventsError
from extproc.routing.kv_events import Figures, Rank, Step
from extproc.routing.prefixes import Prefixes
from extproc.routing.worker import Worker
from extproc.transport.status import Status
from extproc.transport.streaming_client import StreamingCall, open_call

_log = logging.getLogger(__name__)

_TURN_S = 0.001  # what one turn of the event loop may be kept busy, give or take one message
_CONNECT_S = 5.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 15.0
_STABLE_S = 10.0  # a stream that lasted so long may be opened again at once
_UNOFFERED_DELAY_S = 300.0  # an engine may be started again with events on


class Feed(Protocol):
    """The subscriptions of one engine."""

    @property
    def live(self) -> bool:
        """Events come, or would."""
        ...

    def add(self, worker: Worker) -> None:
        """One more rank of it, or the same with a new slot in the index."""
        ...

    def remove(self, worker: Worker) -> None:
        """A rank is gone."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class KvFeeds:
    """All of one pool, an `Observer` after the prefixes."""

    def __init__(self, section: KvEvents, prefixes: Prefixes) -> None:
        self.figures = Figures()
        self._section = section
        self._prefixes = prefixes
        self._feeds: dict[str, Feed] = {}
        self._workers: dict[str, set[Worker]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> int:
        """Engines whose events come in."""
        return sum(feed.live for feed in self._feeds.values())

    @property
    def engines(self) -> int:
        """All of them."""
        return len(self._feeds)

    def joined(self, worker: Worker) -> None:
        """Subscribe."""
        address = worker.address
        feed = self._feeds.get(address)
        if feed is None:
            where = parse_listen(address)
            feed = self._feeds[address] = (
                _ZmqFeed(where, self._section, self._rank)
                if self._section.source == "zmq"
                else _GrpcFeed(where, self._rank)
            )
        self._workers.setdefault(address, set()).add(worker)
        feed.add(worker)

    def restarted(self, worker: Worker) -> None:
        """Its slot is a new one, and its events begin anew."""
        self._feeds[worker.address].add(worker)

    def left(self, worker: Worker) -> None:
        """End, with the engine's last rank."""
        address = worker.address
        ranks = self._workers[address]
        ranks.discard(worker)
        self.figures.lag_s.pop(worker.label, None)
        if ranks:
            self._feeds[address].remove(worker)
            return
        del self._workers[address]
        task = asyncio.ensure_future(self._feeds.pop(address).stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        """End all."""
        feeds = list(self._feeds.values())
        self._feeds = {}
        await asyncio.gather(*(feed.stop() for feed in feeds), *self._ending)

    def _rank(self, worker: Worker) -> _Fed:
        return _Fed(worker, self._prefixes, self.figures)


class _Fed:
    """One rank of an engine, with its slot in the index."""

    def __init__(self, worker: Worker, prefixes: Prefixes, figures: Figures) -> None:
        slot = prefixes.slot(worker)
        assert slot is not None  # the prefixes have observed it first
        self.worker = worker
        self.figures = figures
        self._with_events = prefixes.with_events
        self.rank = Rank(prefixes.index, slot, prefixes.block_tokens, figures, self._completed)

    def take(self, batch: Batch) -> Step:
        """Hot."""
        return self.rank.take(batch)

    def void(self, cause: str) -> None:
        """What it has said is worth nothing."""
        self.rank.void(cause)

    def is_behind(self, batch: Batch) -> None:
        """Note how old this one is."""
        self.figures.lag_s[self.worker.label] = max(time() - batch.timestamp_s, 0.0)

    def _completed(self, complete: bool) -> None:
        if complete:
            self._with_events.add(self.worker)
        else:
            self._with_events.discard(self.worker)


_MakeRank = Callable[[Worker], _Fed]


class _GrpcFeed:
    """An engine's `SubscribeKvEvents`, all of its ranks on one stream. Implements `Feed` and the stream's receiver."""

    def __init__(self, where: HostPort, make_rank: _MakeRank) -> None:
        self._where = where
        self._make_rank = make_rank
        self._ranks: dict[int, _Fed] = {}
        self._call: StreamingCall | None = None
        self._queue: deque[bytes] = deque()
        self._soon: asyncio.Handle | None = None
        self._over: asyncio.Future[tuple[str, int]] | None = None
        self._wake = asyncio.Event()
        self._told = ""
        self._task = asyncio.ensure_future(self._run())
        self.live = False

    def add(self, worker: Worker) -> None:
        self._ranks[worker.rank or 0] = self._make_rank(worker)
        self._finish("restarted")
        self._wake.set()

    def remove(self, worker: Worker) -> None:
        self._ranks.pop(worker.rank or 0, None)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        delay_s = _FIRST_DELAY_S
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            started_s = loop.time()
            cause, status = await self._follow()
            if status == Status.UNIMPLEMENTED:
                delay_s = _UNOFFERED_DELAY_S
            elif cause == "restarted" or loop.time() - started_s > _STABLE_S:
                delay_s = _FIRST_DELAY_S
            try:
                # At random, so that a fleet which lost its network does not come back all at once.
                await asyncio.wait_for(self._wake.wait(), delay_s * (0.5 + random.random()))  # noqa: S311
                delay_s = _FIRST_DELAY_S
            except TimeoutError:
                delay_s = min(delay_s * 2, _LONGEST_DELAY_S)

    async def _follow(self) -> tuple[str, int]:
        """One stream from its beginning to its end: why it ended."""
        where = self._where
        self._over = asyncio.get_running_loop().create_future()
        try:
            self._call = await open_call(
                where.host,
                where.port,
                kv_events_grpc.SUBSCRIBE,
                kv_events_grpc.LIVE_ONLY,
                self,
                max_message_bytes=kv_events_grpc.MAX_BATCH_BYTES,
                timeout_s=_CONNECT_S,
            )
            cause, status = await self._over
        except (OSError, TimeoutError):
            return "refused", Status.UNAVAILABLE
        finally:
            was_live = self.live
            self.live = False
            if self._soon is not None:
                self._soon.cancel()
                self._soon = None
            self._queue.clear()
            if self._call is not None:
                self._call.cancel()
                self._call = None
        if was_live:
            for fed in self._ranks.values():
                fed.void(cause)
        return cause, status

    # The stream's receiver.

    def opened(self) -> None:
        self.live = True
        if self._told:
            self._told = ""
            _log.info("KV events of worker %s come again", self._where)

    def ended(self, status: int, details: str) -> None:
        if status == Status.DATA_LOSS:
            cause = "lost"
        elif status == Status.RESOURCE_EXHAUSTED:
            cause = "unreadable"
        else:
            cause = "ended" if self.live else "refused"
        problem = f"{status}: {details}"
        if problem != self._told:
            self._told = problem
            if status == Status.UNIMPLEMENTED:
                _log.info("worker %s does not publish KV events: %s", self._where, details)
            else:
                _log.warning("KV events of worker %s ended (%s); subscribing again", self._where, problem)
        # What came before the end is still worth something only if the engine goes on, which nobody knows.
        self._finish(cause, status)

    def messages(self, messages: Sequence[bytes]) -> None:
        self._queue.extend(messages)
        if self._soon is None:
            self._go_on()

    def _go_on(self) -> None:
        """Take what came, a millisecond's worth at a time. Hot."""
        self._soon = None
        queue = self._queue
        end_s = perf_counter() + _TURN_S
        while queue:
            if not self._take(queue.popleft(), newest=not queue):
                return
            if queue and perf_counter() > end_s:
                call = self._call
                if call is not None:
                    call.hold()
                self._soon = asyncio.get_running_loop().call_soon(self._go_on)
                return
        if self._call is not None:
            self._call.go_on()

    def _take(self, message: bytes, *, newest: bool) -> bool:
        """Whether the stream goes on."""
        try:
            batch = kv_events_grpc.decode_batch(message)
        except KvEventsError as error:
            _log.warning("KV events of worker %s: %s", self._where, error)
            self._finish("unreadable")
            return False
        fed = self._ranks.get(batch.rank or 0)
        if fed is None:
            if self._ranks:
                next(iter(self._ranks.values())).figures.dropped["other_rank"] += len(batch.events)
            return True
        step = fed.take(batch)
        if step is Step.GAP:
            self._finish("gap")
            return False
        if step is Step.NEXT and newest:
            fed.is_behind(batch)
        return True

    def _finish(self, cause: str, status: int = Status.OK) -> None:
        over = self._over
        if over is not None and not over.done():
            over.set_result((cause, status))


class _ZmqFeed:
    """An engine's publishers, one for each rank on the next port. Implements `Feed`."""

    def __init__(self, where: HostPort, section: KvEvents, make_rank: _MakeRank) -> None:
        self._where = where
        self._section = section
        self._make_rank = make_rank
        self._ranks: dict[int, tuple[_ZmqRank, ZmqSubscription]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> bool:
        return any(rank.live for rank, _ in self._ranks.values())

    def add(self, worker: Worker) -> None:
        self.remove(worker)
        section, number = self._section, worker.rank or 0
        receiver = _ZmqRank(self._make_rank(worker))
        replay = section.replay_port
        publisher = Publisher(
            self._where.host, section.port + number, None if replay is None else replay + number, section.topic
        )
        self._ranks[number] = receiver, ZmqSubscription(publisher, receiver)

    def remove(self, worker: Worker) -> None:
        found = self._ranks.pop(worker.rank or 0, None)
        if found is not None:
            task = asyncio.ensure_future(found[1].close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def stop(self) -> None:
        ranks, self._ranks = self._ranks, {}
        await asyncio.gather(*(subscription.close() for _, subscription in ranks.values()), *self._closing)


class _ZmqRank:
    """The receiver of one publisher."""

    def __init__(self, fed: _Fed) -> None:
        self._fed = fed
        self.live = False

    def connected(self, connected: bool) -> None:
        self.live = connected

    def batch(self, sequence: int, payload: bytes) -> None:
        fed = self._fed
        try:
            batch = kv_events_msgpack.decode_batch(sequence, payload)
        except KvEventsError as error:
            _log.warning("KV events of worker %s: %s", fed.worker.label, error)
            fed.void("unreadable")
            return
        if fed.take(batch) is Step.NEXT:
            fed.is_behind(batch)

    def lost(self, cause: str) -> None:
        self._fed.void(cause)
