"""What receiving KV events costs the gateway: one event a message, two blocks of 16 tokens each, over a socket.

    python benchmarks/bench_kv_events.py [--rate 5000] [--seconds 5]

Both carriers in turn, each from a process of its own that sends at a steady rate. Printed is the CPU of the receiving
process, from the socket to the prefix index, as a share of one core and for each message.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator

import uvloop

from extproc.config.fleet import KvEvents
from extproc.engines.kv_events_grpc import SUBSCRIBE
from extproc.gateway.kv_feeds import KvFeeds
from extproc.kv_events import Batch, Stored
from extproc.routing.index import Sweeper
from extproc.routing.membership import Membership, WorkerSpec
from extproc.routing.policies.base import PrefixUse
from extproc.routing.prefixes import Prefixes
from extproc.simulator.faults import Faults
from extproc.simulator.kv_events import KIND, Load, Subscription
from extproc.simulator.kv_events import KvEvents as Publisher
from extproc.simulator.kv_publisher import ZmqPublisher
from extproc.transport.server import Ngh2Server

BLOCK_TOKENS = 16
BLOCKS = 2
CARRIERS = ("grpc", "zmq")


def batches(count: int) -> Iterator[Batch]:
    """One chain of blocks."""
    chance = random.Random(1)
    parent = None
    for sequence in range(count):
        hashes = [chance.getrandbits(63) for _ in range(BLOCKS)]
        tokens = [chance.randrange(150_000) for _ in range(BLOCKS * BLOCK_TOKENS)]
        yield Batch(sequence, time.time(), [Stored(hashes, parent, tokens, BLOCK_TOKENS, kind=KIND)], 0)
        parent = hashes[-1]


async def send(carrier: str, rate: int, seconds: float) -> None:
    """Prints its port, waits for a line, sends, and waits for another."""
    loop = asyncio.get_running_loop()
    made = list(batches(int(rate * seconds)))
    publish: Callable[[Batch], None]
    if carrier == "zmq":
        publisher = ZmqPublisher("tcp://127.0.0.1:*", "", "")
        port = publisher.endpoint.rpartition(":")[2]

        def publish(batch: Batch) -> None:
            publisher.publish(batch, lost=False)
    else:
        streams: list[Subscription] = []
        events = Publisher(BLOCK_TOKENS, Faults, lambda: Load(1, 0, 0.5))

        def subscribe(call: object) -> Subscription:
            streams.append(events.subscribe(call))  # type: ignore[arg-type]
            return streams[-1]

        server = Ngh2Server({SUBSCRIBE: subscribe})
        await server.start("127.0.0.1:0")
        port = server.address.rpartition(":")[2]
        messages = {batch.sequence: events._message(batch) for batch in made}

        def publish(batch: Batch) -> None:
            streams[0].send(messages[batch.sequence], batch.sequence, 0)

    print(port, flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began = time.perf_counter()
    for number, batch in enumerate(made):
        publish(batch)
        await asyncio.sleep(max(began + number / rate - time.perf_counter(), 0.0))
    await loop.run_in_executor(None, sys.stdin.readline)


async def receive(carrier: str, rate: int, seconds: float) -> None:
    """Measures one carrier."""
    command = [sys.executable, __file__, "--send", carrier, "--rate", str(rate), "--seconds", str(seconds)]
    pipe = asyncio.subprocess.PIPE
    sender = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert sender.stdin is not None
    assert sender.stdout is not None
    port = int(await sender.stdout.readline())
    sweeper = Sweeper(asyncio.get_running_loop())
    prefixes = Prefixes(sweeper.index(), BLOCK_TOKENS, PrefixUse(), 1_000_000)
    members = Membership()
    feeds = KvFeeds(KvEvents(source="zmq", port=port) if carrier == "zmq" else KvEvents(), prefixes)
    members.observe(prefixes)
    members.observe(feeds)
    members.update([WorkerSpec(f"127.0.0.1:{port}", "sender")])
    try:
        async with asyncio.timeout(seconds + 30):
            while not feeds.live:  # noqa: ASYNC110 - nothing announces it
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            cpu_s, began_s = time.process_time(), time.perf_counter()
            sender.stdin.write(b"\n")
            while feeds.figures.batches < int(rate * seconds):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        cpu_s, took_s = time.process_time() - cpu_s, time.perf_counter() - began_s
        figures = feeds.figures
        assert figures.stored == figures.batches * BLOCKS
        print(
            f"{carrier}: {figures.batches / took_s:,.0f} messages/s, {cpu_s / took_s:.1%} of a core, "
            f"{cpu_s / figures.batches * 1e6:.1f} us a message"
        )
    finally:
        await feeds.stop()
        sweeper.close()
        sender.kill()
        await sender.wait()


async def main() -> None:
    """All carriers, or one sender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--send", choices=CARRIERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        await send(options.send, options.rate, options.seconds)
        return
    gc.freeze()
    gc.set_threshold(20_000, 3, 1_000_000)  # as in the gateway
    for carrier in CARRIERS:
        await receive(carrier, options.rate, options.seconds)


if __name__ == "__main__":
    uvloop.run(main())
