"""An engine's KV events, as vLLM publishes them and as its gRPC servicer hands them on.

One batch a step of the engine, numbered from 0. Subscribers get what happens from now on: nothing is kept for them, no
start but 0 is taken. Blocks that are used again are not reported again, and every copy of a block has its own events,
as the cache has its own physical blocks. Beside the batches come records of the engine's load, which repeat the number
of the last batch. Every batch carries such a record too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import common_pb2

from extproc.kv_events import Batch, Cleared, Event, Removed, Stored
from extproc.simulator.constants import KV_LOAD_IDLE_TICKS, KV_LOAD_TICK_S
from extproc.simulator.faults import Faults
from extproc.transport.service import Call, CallHandler
from extproc.transport.status import Status

KIND = "full_attention"
MEDIUM = "GPU"


@dataclass(frozen=True, slots=True)
class Load:
    """What records of the load say."""

    running: int
    waiting: int
    kv_usage: float  # 0 to 1


class _Openable(Protocol):
    """What the transport's calls can do beside `service.Call`: send the response's headers before any message."""

    def open(self) -> None: ...


class Carrier(Protocol):
    """What else takes batches: the ZMQ publisher."""

    def publish(self, batch: Batch, *, lost: bool) -> None:
        """`lost`: subscribers shall not get it."""
        ...


class KvEvents:
    """Collects what the cache reports until the event loop's turn ends, which is the engine's step."""

    def __init__(
        self, block_tokens: int, faults: Callable[[], Faults], load: Callable[[], Load], speed_up: float = 1.0
    ) -> None:
        """`speed_up`: of the engine's time, in which it tells its load."""
        self._block_tokens = block_tokens
        self._faults = faults
        self._load = load
        self._tick_s = KV_LOAD_TICK_S / speed_up
        self._pending: list[Event] = []
        self._soon: asyncio.Handle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._idle_ticks = 0
        self._event_id = 0
        self._streams: dict[Subscription, None] = {}
        self.carriers: list[Carrier] = []
        self.sequence = -1  # of the last batch

    # What the cache reports.

    def stored(self, block_hash: int, parent: int, tokens: Sequence[int]) -> None:
        """A `Watcher`'s."""
        last = self._pending[-1] if self._pending else None
        if isinstance(last, Stored) and last.hashes[-1] == parent:
            last.hashes.append(block_hash)  # type: ignore[attr-defined]  # made below
            last.tokens.extend(tokens)  # type: ignore[attr-defined]
        else:
            self._report(Stored([block_hash], parent or None, list(tokens), self._block_tokens, kind=KIND))

    def removed(self, block_hash: int) -> None:
        """A `Watcher`'s."""
        self._report(Removed([block_hash]))

    def cleared(self) -> None:
        """A `Watcher`'s."""
        self._report(Cleared())

    def _report(self, event: Event) -> None:
        self._pending.append(event)
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._soon = None
        faults = self._faults()
        copies = faults.kv_copies
        events = [event for event in self._pending for _ in range(1 if isinstance(event, Cleared) else copies)]
        self._pending = []
        self.sequence += 1
        lost = faults.kv_lose_every > 0 and self.sequence % faults.kv_lose_every == faults.kv_lose_every - 1
        if not self._streams and not self.carriers:
            return
        batch = Batch(self.sequence, time.time(), events, 0)
        for carrier in self.carriers:
            carrier.publish(batch, lost=lost)
        if self._streams and not lost:
            message = self._message(batch)
            for stream in list(self._streams):
                stream.send(message, self.sequence, faults.kv_data_loss_after)

    # gRPC.

    def subscribe(self, call: Call) -> Subscription:
        """A SubscribeKvEvents call."""
        return Subscription(call, self)

    def begin(self, stream: Subscription) -> None:
        """It gets all batches from now on."""
        self._streams[stream] = None
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(self._tick_s, self._tell_load)

    def end(self, stream: Subscription) -> None:
        """It is gone."""
        self._streams.pop(stream, None)

    def close(self) -> None:
        """No timer is left behind."""
        for handle in (self._tick, self._soon):
            if handle is not None:
                handle.cancel()
        self._tick = self._soon = None
        self._streams.clear()

    def _tell_load(self) -> None:
        """Ten times a second while there is work, once while there is none."""
        self._tick = None
        if not self._streams:
            return
        self._tick = asyncio.get_running_loop().call_later(self._tick_s, self._tell_load)
        load = self._load()
        self._idle_ticks += 1
        if not load.running and not load.waiting and self._idle_ticks < KV_LOAD_IDLE_TICKS:
            return
        self._idle_ticks = 0
        for stream in self._streams:
            if stream.last is not None:
                stream.tell(self._message(Batch(stream.last, time.time(), (), 0, load_only=True)))

    def _message(self, batch: Batch) -> bytes:
        message = common_pb2.KvEventBatch(sequence_number=batch.sequence, timestamp=batch.timestamp_s, dp_rank=0)
        load = self._load()
        record = message.load
        record.running_requests = load.running
        record.waiting_requests = load.waiting
        record.token_usage = load.kv_usage
        record.load_only = batch.load_only
        for event in batch.events:
            self._event_id += 1
            into = message.events.add(event_id=self._event_id)
            match event:
                case Stored():
                    _fill(into.stored, event)
                case Removed(hashes=hashes):
                    removed = into.removed
                    removed.block_hashes.extend(hashes)
                    removed.tier = common_pb2.KV_CACHE_TIER_DEVICE
                    removed.medium = MEDIUM
                    removed.group_idx = 0
                    removed.locality = common_pb2.KV_CACHE_LOCALITY_LOCAL
                case _:
                    into.cleared.SetInParent()
        data: bytes = message.SerializeToString()
        return data


def _fill(stored: common_pb2.KvBlocksStored, event: Stored) -> None:
    size = event.block_tokens
    for number, block_hash in enumerate(event.hashes):
        stored.blocks.add(
            block_hash=block_hash, token_ids=event.tokens[number * size : (number + 1) * size], block_size=size
        )
    if event.parent is not None:
        stored.parent_block_hash = event.parent
    stored.tier = common_pb2.KV_CACHE_TIER_DEVICE
    stored.medium = MEDIUM
    stored.group_idx = 0
    stored.kv_cache_spec_kind = KIND
    stored.locality = common_pb2.KV_CACHE_LOCALITY_LOCAL


class Subscription(CallHandler):
    """One SubscribeKvEvents call."""

    def __init__(self, call: Call, events: KvEvents) -> None:
        self._call = call
        self._events = events
        self._batches = 0
        self.last: int | None = None
        """The sequence number of the last batch that it got."""

    def message(self, data: bytes) -> None:
        try:
            request = common_pb2.SubscribeKvEventsRequest.FromString(data)
        except DecodeError:
            self._call.finish(Status.INTERNAL, "the message is no SubscribeKvEventsRequest")
            return
        if request.start_sequence_number:
            self._call.finish(
                Status.OUT_OF_RANGE, "nothing is kept between calls; subscribe again with start_sequence_number 0"
            )
            return
        if request.load_records_before_first_batch:
            self.last = 0
        cast(_Openable, self._call).open()
        self._events.begin(self)

    def send(self, message: bytes, sequence: int, loss_after: int) -> None:
        """A batch. `loss_after`: so many batches of this stream are its last ones; 0: none is."""
        self.last = sequence
        self._call.send(message)
        self._batches += 1
        if loss_after and self._batches >= loss_after:
            self._call.finish(Status.DATA_LOSS, "injected fault: the publisher's events cannot be verified")
            self._events.end(self)

    def tell(self, message: bytes) -> None:
        """A record of the load."""
        self._call.send(message)

    def half_close(self) -> None:
        pass  # the request is all that is waited for

    def closed(self) -> None:
        self._events.end(self)
