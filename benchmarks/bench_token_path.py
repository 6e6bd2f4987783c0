"""What a streamed token costs the processor's code: 64 answers through a whole connection, without sockets.

Run: make bench-token-path [ARGS='--at-once 1 8 64']

Envoy's side is an HTTP/2 client in this process, whose work is not counted. CPU time of this process for the messages
of one read, divided by their number; the best of some rounds. `at once` is how many messages one read brings.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import time
from collections.abc import Iterator

import uvloop
from in_process import InProcess, Prompts, answer, request
from ngh2 import Configuration, Connection, Role, Setting

from extproc.exchange.service import METHOD, ExtProcService
from extproc.transport.connection import Ngh2Connection, configuration
from extproc.transport.framing import frame
from extproc.transport.limits import TransportLimits

STREAMS = 64
TOKENS = 300
ROUNDS = 3
_HEADERS = [
    (b":method", b"POST"),
    (b":path", METHOD.encode()),
    (b":scheme", b"http"),
    (b":authority", b"processor"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
]


class Socket(asyncio.Transport):
    """Takes what the connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It never fills."""


class Peers:
    """A client and the connection that serves it."""

    def __init__(self, service: ExtProcService) -> None:
        limits = TransportLimits()
        self.socket = Socket()
        self.connection = Ngh2Connection(
            service.service(), limits, configuration(limits), opened=lambda _: None, lost=lambda _: None
        )
        self.connection.connection_made(self.socket)
        self.client = Connection(Role.CLIENT, Configuration())
        self.client.initiate_connection({Setting.INITIAL_WINDOW_SIZE: 1 << 20, Setting.MAX_CONCURRENT_STREAMS: STREAMS})
        self.client.set_local_window_size(64 << 20)
        self.settle()

    def settle(self) -> None:
        """Exchange bytes until nobody has anything to say."""
        while (sent := self.client.data_to_send()) or self.socket.written:
            if sent:
                self.connection.data_received(sent)
            written, self.socket.written = self.socket.written, []
            self.client.receive_data(b"".join(written))
            self.client.events()


def measure(gateway: InProcess, prompts: Prompts, at_once: int) -> float:
    """Microseconds for a token."""
    service = ExtProcService(gateway.gateway, deadline_s=600.0, held_bodies_bytes=1 << 28)
    peers = Peers(service)
    rng = random.Random(at_once)
    streams: list[tuple[int, Iterator[bytes]]] = []
    for _ in range(STREAMS):
        stream = peers.client.send_request(_HEADERS)
        for message in request(prompts.body(600)):
            peers.client.send_data(stream, frame(message))
        peers.settle()
        head, first, *rest, _ = answer([rng.randrange(1000, 60_000) for _ in range(TOKENS)], 50)
        peers.client.send_data(stream, frame(head) + frame(first))
        peers.settle()
        streams.append((stream, map(frame, rest)))
    gc.collect()
    gc.freeze()
    spent_ns = 0
    for _ in range(TOKENS - 1):
        for start in range(0, STREAMS, at_once):
            for stream, messages in streams[start : start + at_once]:
                peers.client.send_data(stream, next(messages))
            data = peers.client.data_to_send()
            began_ns = time.process_time_ns()
            peers.connection.data_received(data)
            spent_ns += time.process_time_ns() - began_ns
            peers.settle()
    service.close()
    return spent_ns / (STREAMS * (TOKENS - 1)) / 1000


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 64])
    arguments = parser.parse_args()
    gateway = await InProcess.load()
    prompts = Prompts()
    for at_once in arguments.at_once:
        best = min(measure(gateway, prompts, at_once) for _ in range(ROUNDS))
        print(f"{at_once:>3} messages at once: {best:.1f} us a token", flush=True)
    await gateway.aclose()


if __name__ == "__main__":
    uvloop.run(main())
