"""Thousands of streams at once, through a real Envoy: none fails, none is left, and nobody's memory grows with them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from load_peers import LoadClient, LoadEngine, LoadStream, chat
from stack import Stack, StartStack, eventually

from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def loaded(
    start_stack: StartStack, engine: LoadEngine, connections: int = 4, **settings: Any
) -> AsyncIterator[tuple[Stack, list[LoadClient]]]:
    """A gateway in front of the engine, and clients on connections of their own."""
    await engine.start()
    clients: list[LoadClient] = []
    try:
        pool = {"workers": [engine.address], "tokenizer": str(OWN_MODEL)}
        # The one process of test, processor and engine is busy for seconds: its health checks may be late.
        settings = {"health": {"interval_s": 0.1, "timeout_s": 30.0}, **settings}
        async with start_stack(specs=[], pool=pool, settings=settings) as stack:
            clients += [await LoadClient.connect(stack.http_port) for _ in range(connections)]
            yield stack, clients
    finally:
        for client in clients:
            client.close()
        await engine.stop()


def kinds(streams: list[LoadStream]) -> dict[str, int]:
    """How streams ended, to be compared as a whole, so that a failure tells what came in place of the answers."""
    ends = Counter(
        "whole" if is_whole(stream) else f"{stream.status}, ended {stream.ended}: {bytes(stream.body[-200:])!r}"
        for stream in streams
    )
    return dict(ends)


async def all_over(streams: list[LoadStream]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        for stream in streams:
            await stream.over.wait()


def is_whole(stream: LoadStream) -> bool:
    return stream.status == 200 and stream.ended and stream.body.endswith(b"data: [DONE]\n\n")


async def test_two_thousand_streams_at_once_are_served_without_an_error(start_stack: StartStack) -> None:
    engine = LoadEngine()
    async with loaded(start_stack, engine) as (stack, clients):
        streams = [clients[number % len(clients)].post(chat()) for number in range(2000)]
        await eventually(lambda: engine.open_streams == 2000, "all streams at the engine", PATIENCE_S)
        assert stack.processor.open_exchanges == 2000
        assert stack.load()[1] == 2000
        engine.release()
        await all_over(streams)
        assert kinds(streams) == {"whole": 2000}
        assert engine.begun == 2000
        await eventually(lambda: engine.open_streams == 0, "the engine at rest")
        await stack.nothing_left()
        assert await stack.stats("clients.ext_proc.streams_failed") == {}


async def test_streams_over_the_printed_ceiling_are_told_so_and_the_others_served(start_stack: StartStack) -> None:
    engine = LoadEngine()
    async with loaded(start_stack, engine, envoy={"max_requests": 1000}) as (stack, clients):
        streams = [clients[number % len(clients)].post(chat()) for number in range(1500)]
        await eventually(
            lambda: engine.open_streams == 1000 and sum(stream.over.is_set() for stream in streams) == 500,
            "the ceiling reached, and the rest answered",
            PATIENCE_S,
        )
        refused = [stream for stream in streams if stream.over.is_set()]
        for stream in refused:
            assert (stream.status, stream.ended) == (503, True)
            assert json.loads(stream.body)["error"]["code"] == "processor_unavailable"
            assert int(stream.headers[b"retry-after"]) >= 1
        engine.release()
        await all_over(streams)
        assert sum(map(is_whole, streams)) == 1000
        later = clients[0].post(chat())
        await all_over([later])
        assert is_whole(later)
        await stack.nothing_left()


async def test_a_storm_of_cancellations_leaves_nothing(start_stack: StartStack) -> None:
    spec = EngineSpec(
        prefill_tokens_per_s=20_000.0, decode_step_s=0.01, answers=Answers.NATURAL, answer_tokens=30, max_running=512
    )
    moments = random.Random(5)
    async with start_stack(specs=[spec, spec], settings={"health": {"interval_s": 0.1, "timeout_s": 30.0}}) as stack:
        clients = [await LoadClient.connect(stack.http_port) for _ in range(4)]
        ends = {"whole": 0, "cancelled": 0, "refused": 0}

        async def one(number: int) -> None:
            body = chat(stream=bool(number % 3))
            stream = clients[number % len(clients)].post(None)
            cut = moments.randrange(len(body))
            for pause, step in (
                (moments.random() * 0.1, lambda: stream.send(body[:cut], end=False)),
                (moments.random() * 0.1, lambda: stream.send(body[cut:], end=True)),
                (moments.random() * 0.6, stream.reset),
            ):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stream.over.wait(), pause)
                if moments.random() < 0.2:
                    stream.reset()
                step()
            await asyncio.wait_for(stream.over.wait(), PATIENCE_S)
            ends["whole" if is_whole(stream) else "refused" if stream.status >= 400 else "cancelled"] += 1

        await asyncio.gather(*(one(number) for number in range(1000)))
        assert ends["cancelled"] >= 100
        await stack.nothing_left(PATIENCE_S)
        last = clients[0].post(chat(max_tokens=1))
        await all_over([last])
        assert is_whole(last)
        for client in clients:
            client.close()
