"""Orders to engines that run, and how fast each of a fleet is."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import pytest
from simulator_client import chat

from extproc.simulator.commands import serve_commands
from extproc.simulator.speeds import spread_speeds

PROMPT = chat("one two three four five six seven eight")


@asynccontextmanager
async def ordering(client, path):
    """A function that gives an order to the client's engine and returns the answer."""
    server = await serve_commands(path, [client.engine])
    reader, writer = await asyncio.open_unix_connection(path)

    async def order(text: str) -> dict[str, object]:
        writer.write(text.encode() + b"\n")
        return json.loads(await reader.readline())

    try:
        yield order
    finally:
        writer.close()
        server.close()


async def test_totals_count_what_was_cached_and_what_was_computed(start, tmp_path):
    client = await start()
    prompt = list(range(100, 200))
    for _ in range(2):
        await client.generate(prompt, max_tokens=5, ignore_eos=True)
    async with ordering(client, tmp_path / "socket") as order:
        (totals,) = (await order('{"do": "totals"}'))["totals"]
    assert totals["address"] == client.engine.address
    assert (totals["requests"], totals["prompt_tokens"]) == (2, 200)
    assert (totals["cached_tokens"], totals["computed_tokens"], totals["generated_tokens"]) == (96, 104, 10)


async def test_faults_and_restart_on_order(start, tmp_path):
    client = await start()
    await client.generate(PROMPT)
    async with ordering(client, tmp_path / "socket") as order:
        assert await order('{"do": "faults", "engine": 0, "faults": {"break_kind": "error", "status": 8}}') == {}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.generate(PROMPT)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await order('{"do": "restart", "engine": 0}') == {}
        # It remembers nothing, not even what it was told to do wrong.
        await client.generate_anew(PROMPT)
        assert await order('{"do": "kill", "engine": 0}') == {}
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*client.engine.address.split(":"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "Expecting value"),
        ("[]", "object"),
        ('{"do": "dance"}', "dance"),
        ('{"do": "kill"}', "engine"),
        ('{"do": "kill", "engine": 1}', "engine"),
        ('{"do": "faults", "engine": 0, "faults": {"break_kind": "slip"}}', "slip"),
        ('{"do": "faults", "engine": 0, "faults": {"colour": 1}}', "colour"),
    ],
)
async def test_mistakes_are_answered_and_harm_nothing(start, tmp_path, text, named):
    client = await start()
    async with ordering(client, tmp_path / "socket") as order:
        assert named in (await order(text))["error"]
        assert "totals" in await order('{"do": "totals"}')
    await client.generate(PROMPT)


async def test_model_time_runs_faster_than_the_clock(start):
    plain = await start(prefill_tokens_per_s=100.0)
    fast = await start(prefill_tokens_per_s=50.0, speed_up=8.0)
    ended = []

    async def ask(client, name):
        await client.generate([5] * 100, max_tokens=1)
        ended.append(name)

    await asyncio.gather(ask(plain, "1 s of one to one"), ask(fast, "2 s at 8 to 1"))
    assert ended == ["2 s at 8 to 1", "1 s of one to one"]
    assert fast.engine.engine.totals().busy_s == pytest.approx(2 * plain.engine.engine.totals().busy_s)


@pytest.mark.parametrize("count", [1, 2, 8, 33])
def test_speeds_differ_by_seed_and_leave_the_fleet_as_strong(count):
    speeds = spread_speeds(count, 0.2, 7)
    assert sum(speeds) == pytest.approx(count)
    assert speeds == spread_speeds(count, 0.2, 7)
    if count > 1:
        assert (min(speeds), max(speeds)) == (pytest.approx(0.8), pytest.approx(1.2))
    if count > 2:
        assert speeds != spread_speeds(count, 0.2, 8)
        assert speeds != sorted(speeds)
    assert spread_speeds(count, 0.0, 7) == [1.0] * count
