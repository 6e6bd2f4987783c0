"""Peers that stop: clients that do not read, a processor that stands still, a processor that is gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from http2_peers import chunk, complete
from load_peers import LoadClient, LoadEngine, LoadStream, chat
from ngh2 import Setting
from processor_process import Behind, behind_envoy, resident_bytes, serving
from stack import START_S, eventually

from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import Answers, EngineSpec

pytestmark = pytest.mark.envoy

PATIENCE_S = 60.0
MB = 1_000_000
READERS = 12
PIECE = chunk(range(300, 800))
PIECES = 8 * MB // len(PIECE)


async def all_over(streams: list[LoadStream]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for stream in streams:
            await stream.over.wait()


def is_whole(stream: LoadStream) -> bool:
    return stream.status == 200 and stream.ended and stream.body.endswith(b"data: [DONE]\n\n")


def unchanged(value: Callable[[], int], times: int = 15) -> Callable[[], bool]:
    """A condition for `eventually`: the value is over 0 and was the same so many times in a row."""
    seen = [0, 0]

    def stands_still() -> bool:
        now = value()
        seen[1] = seen[1] + 1 if now == seen[0] else 0
        seen[0] = now
        return now > 0 and seen[1] >= times

    return stands_still


async def test_clients_that_do_not_read_cost_a_little_memory_and_nobody_else_anything(
    envoy_binary: Path, tmp_path: Path
) -> None:
    def answer(_: int) -> Iterator[bytes]:
        for _ in range(PIECES):
            yield PIECE
        yield complete()

    engine = LoadEngine(answer, released=True)
    await engine.start()
    clients: list[LoadClient] = []
    try:
        async with behind_envoy(envoy_binary, tmp_path, [engine.address]) as behind, serving(behind) as processor:
            (quick,) = clients = [await LoadClient.connect(behind.port, keep=False)]
            first = quick.post(chat(max_tokens=8))
            await all_over([first])
            size = first.received_bytes
            assert is_whole(first)
            assert size > 10 * MB
            before = (resident_bytes(behind.envoy), resident_bytes(processor))
            engine.sent_bytes = 0
            slow = [await LoadClient.connect(behind.port, window_bytes=0, keep=False) for _ in range(READERS)]
            clients += slow
            streams = [client.post(chat(max_tokens=8)) for client in slow]
            await eventually(lambda: engine.open_streams == READERS, "all streams at the engine", PATIENCE_S)
            await eventually(unchanged(lambda: engine.sent_bytes), "the engine held back", PATIENCE_S)
            # Each could have taken 8 MB of the engine's and 16 MB for the client.
            assert engine.sent_bytes < 4 * MB * READERS
            growth = (resident_bytes(behind.envoy) - before[0], resident_bytes(processor) - before[1])
            assert max(growth) < 6 * MB * READERS, growth
            # Others are served meanwhile, and these as soon as they read.
            other = quick.post(chat(max_tokens=8))
            await all_over([other])
            assert (is_whole(other), other.received_bytes) == (True, size)
            for client in slow:
                client.http.update_settings({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
                client.flush()
            await all_over(streams)
            assert [stream.received_bytes for stream in streams] == [size] * READERS
            assert all(map(is_whole, streams))

            async def at_rest() -> bool:
                return await behind.metric("extproc_exchanges_in_flight") == 0

            await eventually(at_rest, "no exchange left")
    finally:
        for client in clients:
            client.close()
        await engine.stop()


async def test_a_processor_that_stands_still_goes_on_and_one_that_is_killed_is_told_clearly(
    envoy_binary: Path, tmp_path: Path
) -> None:
    spec = EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.05, answers=Answers.NATURAL, answer_tokens=60)
    (engine,) = await start_engines([spec])
    try:
        async with behind_envoy(envoy_binary, tmp_path, [engine.address]) as behind:
            client = await LoadClient.connect(behind.port)
            async with serving(behind) as processor:
                await eventually(behind.served, "an answer of the engine", START_S)
                await stands_still_and_goes_on(behind, client, processor.pid)
                await eventually(behind.served, "an answer after the standstill", START_S)
                streams = [client.post(chat()) for _ in range(30)]
                for stream in streams:
                    await asyncio.wait_for(stream.begun.wait(), PATIENCE_S)
                # Their answers have not begun.
                whole = [client.post(chat(stream=False)) for _ in range(30)]
                await eventually(lambda: engine.load().running == 60, "all requests at the engine", PATIENCE_S)
                os.kill(processor.pid, signal.SIGKILL)
                await all_over([*streams, *whole])
                assert not any(stream.ended for stream in streams)
                for stream in whole:
                    assert (stream.status, stream.ended) == (503, True)
                    assert json.loads(stream.body)["error"]["code"] == "processor_unavailable"
                await eventually(lambda: engine.load().running == 0, "the engine freed")
                late = client.post(chat())
                await all_over([late])
                assert (late.status, late.headers[b"content-type"]) == (503, b"application/json")
            async with serving(behind):
                await eventually(behind.served, "an answer through the restarted processor", START_S)
            client.close()
    finally:
        await engine.stop()


async def stands_still_and_goes_on(behind: Behind, client: LoadClient, pid: int) -> None:
    """Stopped for so long that Envoy gives it up for new requests, it ends all that it had begun."""
    streams = [client.post(chat()) for _ in range(30)]
    for stream in streams:
        await asyncio.wait_for(stream.begun.wait(), PATIENCE_S)
    os.kill(pid, signal.SIGSTOP)
    try:

        async def given_up() -> bool:
            return await behind.stat("cluster.processor.membership_healthy") == 0

        await eventually(given_up, "Envoy gave the processor up", START_S)
        assert not any(stream.over.is_set() for stream in streams)
        refused = client.post(chat())
        await all_over([refused])
        assert refused.status == 503
        assert json.loads(refused.body)["error"]["code"] == "processor_unavailable"
    finally:
        os.kill(pid, signal.SIGCONT)
    await all_over(streams)
    assert sum(map(is_whole, streams)) == 30
