"""KV events over ZeroMQ, in the form that vLLM and SGLang share: a PUB socket, and a ROUTER that sends batches again.

A message has three frames: the topic, the number of the batch in eight bytes, big-endian, and the batch in msgpack as
`[timestamp, events, rank]`, each event a map with its `type`. Who asks the ROUTER for a number gets all batches from
there that are still kept, each with an empty frame before it, and then one with the number -1.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec
import zmq

from extproc.kv_events import Batch, Event, Removed, Stored
from extproc.simulator.constants import KV_REPLAY_BATCHES, KV_ZMQ_QUEUE
from extproc.simulator.kv_events import MEDIUM

_END = (-1).to_bytes(8, "big", signed=True)


class PublisherError(Exception):
    """An address cannot be used; the message says which and why."""


class ZmqPublisher:
    """A `Carrier` on the event loop that is running."""

    def __init__(self, endpoint: str, replay_endpoint: str, topic: str) -> None:
        """Binds. Raises PublisherError."""
        self._context = zmq.Context()
        self._loop = asyncio.get_running_loop()
        self._topic = topic.encode()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KV_REPLAY_BATCHES)
        self._encode = msgspec.msgpack.Encoder().encode
        self._replay: zmq.Socket[bytes] | None = None
        self._pub = self._bound(zmq.PUB, endpoint)
        if replay_endpoint:
            self._replay = self._bound(zmq.ROUTER, replay_endpoint)
            self._loop.add_reader(int(self._replay.get(zmq.FD)), self._asked)

    @property
    def endpoint(self) -> str:
        """With the real port."""
        return _bound_to(self._pub)

    @property
    def replay_endpoint(self) -> str:
        """With the real port; empty for none."""
        return _bound_to(self._replay) if self._replay is not None else ""

    def publish(self, batch: Batch, *, lost: bool) -> None:
        """A `Carrier`'s. What is lost is kept for the ROUTER all the same."""
        sequence = batch.sequence.to_bytes(8, "big")
        payload = self._encode((batch.timestamp_s, [_fields(event) for event in batch.events], batch.rank))
        if self._replay is not None:
            self._kept.append((sequence, payload))
        if not lost:
            self._pub.send_multipart((self._topic, sequence, payload), zmq.NOBLOCK)
        self._asked()  # the ROUTER's descriptor says only once that there is something

    def close(self) -> None:
        """Unbind. Again does nothing."""
        if self._replay is not None:
            self._loop.remove_reader(int(self._replay.get(zmq.FD)))
            self._replay = None
        self._context.destroy(linger=0)

    def _bound(self, kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set_hwm(KV_ZMQ_QUEUE)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise PublisherError(f"cannot publish KV events at {endpoint}: {error}") from error
        return socket

    def _asked(self) -> None:
        router = self._replay
        while router is not None and int(router.get(zmq.EVENTS)) & zmq.POLLIN:
            frames = router.recv_multipart(zmq.NOBLOCK)
            if len(frames) == 3:
                client, _, first = frames
                for sequence, payload in self._kept:
                    if sequence >= first:
                        router.send_multipart((client, b"", self._topic, sequence, payload), zmq.NOBLOCK)
                router.send_multipart((client, b"", b"", _END, b""), zmq.NOBLOCK)


def _bound_to(socket: zmq.Socket[bytes]) -> str:
    return socket.get_string(zmq.LAST_ENDPOINT)


def _fields(event: Event) -> dict[str, Any]:
    """As vLLM's encoder writes it: what has its default is left out at the end."""
    match event:
        case Stored():
            return {
                "type": "BlockStored",
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": event.tokens,
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": None,
                "group_idx": event.group,
                "kv_cache_spec_kind": event.kind,
            }
        case Removed():
            return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": MEDIUM, "group_idx": event.group}
        case _:
            return {"type": "AllBlocksCleared"}
