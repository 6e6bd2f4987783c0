"""CPU per message of the transports: an echo server in a child process, one client connection in this one.

    python benchmarks/bench_transport.py [--messages 50000] [--size 100] [--streams 1 64] [--transport ngh2 grpcio]

Every stream plays ping-pong: it sends one message and waits for the answer, so more streams mean more batching. The
figure is the server process's user and system time per echoed message, in microseconds; it is good to about 20 % on a
machine that does other things too. The client is ngh2 as well, written to be cheaper than any server here.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import tempfile
import time
from multiprocessing.connection import Connection as Pipe
from typing import cast

import uvloop
from ngh2 import Configuration, Connection, DataReceived, Role, Setting

from extproc.transport.framing import frame
from extproc.transport.service import Call
from extproc.transport.serving import TransportName, serve

PATH = "/benchmark.Echo/Echo"


class Echo:
    """Sends every message back."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, data: bytes) -> None:
        self._call.send(data)

    def half_close(self) -> None:
        self._call.finish()

    def closed(self) -> None:
        pass


def run_server(transport: TransportName, listen: str, pipe: Pipe) -> None:
    """Serve until told to stop; answer every question with the CPU seconds used so far."""

    async def main() -> None:
        server = await serve({PATH: Echo}, listen, transport)
        stopped = asyncio.Event()

        def on_question() -> None:
            if pipe.recv() == "stop":
                stopped.set()
                return
            usage = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(usage.ru_utime + usage.ru_stime)

        asyncio.get_running_loop().add_reader(pipe.fileno(), on_question)
        pipe.send(server.address)
        await stopped.wait()
        await server.stop(0)

    uvloop.run(main())


class Client(asyncio.Protocol):
    """Plays ping-pong on many streams of one connection."""

    def __init__(self, streams: int, messages: int, size: int) -> None:
        self._message = frame(os.urandom(size))
        self._streams = streams
        self._left = messages
        self._received: dict[int, int] = {}
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._http = Connection(Role.CLIENT, Configuration(peer_max_concurrent_streams=100_000))
        self._http.initiate_connection({Setting.INITIAL_WINDOW_SIZE: 1 << 24})
        self._http.set_local_window_size(1 << 30)
        for _ in range(self._streams):
            stream_id = self._http.send_request(
                [
                    (b":method", b"POST"),
                    (b":scheme", b"http"),
                    (b":path", PATH.encode()),
                    (b":authority", b"benchmark"),
                    (b"te", b"trailers"),
                    (b"content-type", b"application/grpc"),
                ]
            )
            self._received[stream_id] = 0
            self._http.send_data(stream_id, self._message)
        self._transport.write(self._http.data_to_send())

    def data_received(self, data: bytes) -> None:
        http = self._http
        http.receive_data(data)
        size = len(self._message)
        for event in http.events():
            if type(event) is not DataReceived:
                continue
            received = self._received[event.stream_id] + len(event.data)
            if received == size:
                received = 0
                self._left -= 1
                if not self._left:
                    self.done.set_result(None)
                http.send_data(event.stream_id, self._message)
            self._received[event.stream_id] = received
        self._transport.write(http.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))


async def play(address: str, streams: int, messages: int, size: int) -> None:
    """Echo `messages` messages over `streams` streams."""
    transport, client = await asyncio.get_running_loop().create_unix_connection(
        lambda: Client(streams, messages, size), address.removeprefix("unix:")
    )
    await client.done
    transport.abort()


def measure(transport: TransportName, streams: int, messages: int, size: int) -> tuple[float, float]:
    """Server CPU and elapsed time, both in microseconds per message."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as directory:
        server = context.Process(target=run_server, args=(transport, f"unix:{directory}/echo.sock", theirs))
        server.start()
        try:
            address = ours.recv()
            uvloop.run(play(address, streams, max(messages // 10, streams), size))  # warm
            ours.send("cpu")
            cpu_before = ours.recv()
            before = time.perf_counter()
            uvloop.run(play(address, streams, messages, size))
            elapsed_s = time.perf_counter() - before
            ours.send("cpu")
            cpu_s = ours.recv() - cpu_before
            ours.send("stop")
            server.join()
        finally:
            server.kill()
            server.join()
    return cpu_s / messages * 1e6, elapsed_s / messages * 1e6


def main() -> None:
    """Print one line per transport and number of streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of one message")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--transport", nargs="+", choices=["ngh2", "grpcio"], default=["ngh2", "grpcio"])
    arguments = parser.parse_args()
    print(f"{'transport':<10} {'streams':>8} {'server CPU, us/message':>24} {'elapsed, us/message':>20}")
    for transport in arguments.transport:
        for streams in arguments.streams:
            cpu_us, elapsed_us = measure(transport, streams, arguments.messages, arguments.size)
            print(f"{transport:<10} {streams:>8} {cpu_us:>24.2f} {elapsed_us:>20.2f}", flush=True)


if __name__ == "__main__":
    main()
