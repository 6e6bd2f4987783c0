"""Workers come and go under load through a real Envoy, and what is too much waits or is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from stack import INSTANT, Stack, StartStack, eventually

from extproc.discovery.admin import WorkersAdmin
from extproc.observe.admin import AdminServer
from extproc.simulator.fleet import RunningEngine, start_engines
from extproc.simulator.spec import OWN_MODEL, EngineSpec

pytestmark = pytest.mark.envoy

MESSAGES: Any = [{"role": "user", "content": "the quick brown fox"}]

SLOW = {"prefill_tokens_per_s": 0.0, "decode_step_s": 0.02}
"""An engine whose answers of some tokens take a while."""


@contextlib.asynccontextmanager
async def admin(stack: Stack) -> AsyncIterator[httpx2.AsyncClient]:
    """The address for operators."""
    server = AdminServer(stack.processor, {"workers": WorkersAdmin(stack.processor, None, open_to_all=True).answer})
    await server.start("127.0.0.1", 0)
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
        yield http
    await server.stop()


@contextlib.asynccontextmanager
async def engine(**spec: Any) -> AsyncIterator[RunningEngine]:
    """One more, which the gateway does not know yet."""
    (running,) = await start_engines([EngineSpec(**{**INSTANT, **spec})])
    try:
        yield running
    finally:
        await running.stop()


def answered(each: RunningEngine) -> int:
    """Requests that it has answered."""
    return each.engine.totals().requests


class Load:
    """Clients that ask again and again; every answer must be complete."""

    def __init__(self, client: openai.AsyncOpenAI, clients: int = 6) -> None:
        self.answers = 0
        self._client = client
        self._going = True
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(clients)]

    async def _ask(self) -> None:
        while self._going:
            answer = await self._client.chat.completions.create(model="simulated", messages=MESSAGES, max_tokens=8)
            assert answer.choices[0].message.content
            self.answers += 1

    def check(self) -> bool:
        for task in self._tasks:
            if task.done():
                task.result()
        return True

    async def goes_on(self, answers: int = 30) -> None:
        """Wait for so many more."""
        goal = self.answers + answers
        await eventually(lambda: self.check() and self.answers >= goal, f"{answers} more answers", 30.0)

    async def end(self) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)


async def states(http: httpx2.AsyncClient) -> dict[str, str]:
    return {each["address"]: each["state"] for each in (await http.get("/workers")).json()["workers"]}


async def test_workers_are_added_drained_and_removed_under_load_and_no_request_fails(start_stack: StartStack) -> None:
    async with (
        start_stack(specs=[EngineSpec(**SLOW) for _ in range(2)]) as stack,
        engine(**SLOW) as third,
        admin(stack) as http,
    ):
        first, second = (each.address for each in stack.engines)
        load = Load(stack.client())
        await load.goes_on()
        assert (await http.post("/workers", json={"pool": "main", "address": third.address})).status_code == 202

        async def served_by_all() -> bool:
            return load.check() and answered(third) > 5

        await eventually(served_by_all, "the new worker serves", 15.0)

        assert (await http.post(f"/workers/main/{first}/drain")).status_code == 202

        async def drained() -> bool:
            return (await states(http))[first] == "draining" and _idle(stack, first)

        await eventually(drained, "the drained worker at rest", 15.0)
        before = answered(stack.engines[0])
        await load.goes_on()
        assert answered(stack.engines[0]) == before

        assert (await http.delete(f"/workers/main/{third.address}")).status_code == 202

        async def gone() -> bool:
            return load.check() and set(await states(http)) == {first, second}

        await eventually(gone, "the removed worker gone", 15.0)
        assert third.address not in (stack.folder / "xds" / "eds" / "main.yaml").read_text()
        before = answered(third)
        await load.goes_on()
        assert answered(third) == before
        await load.end()
        assert await states(http) == {first: "draining", second: "ready"}
        metrics = await stack.processor.metrics()
        assert b'extproc_destination_ignored_total{pool="main"} 0.0' in metrics
        await stack.nothing_left()


def _idle(stack: Stack, address: str) -> bool:
    assert stack.processor.fleet is not None
    return all(worker.running == 0 for worker in stack.processor.fleet.workers if worker.address == address)


async def test_a_pool_that_had_no_workers_serves_those_of_a_file_when_it_names_some(
    start_stack: StartStack, tmp_path: Path
) -> None:
    path = tmp_path / "engines.yaml"
    path.write_text("[]")
    async with (
        engine() as only,
        start_stack(specs=[], pool={"discover": {"file": str(path)}, "tokenizer": str(OWN_MODEL)}) as stack,
    ):
        beside = tmp_path / "engines.new"
        beside.write_text(f"- {only.address}\n")
        os.replace(beside, path)
        client = stack.client()

        async def serves() -> bool:
            with contextlib.suppress(openai.APIStatusError):
                await client.chat.completions.create(model="simulated", messages=MESSAGES, max_tokens=2)
            return answered(only) > 0

        await eventually(serves, "the file's worker serves", 20.0)


async def test_beyond_the_caps_requests_wait_and_beyond_the_queue_they_get_a_429(start_stack: StartStack) -> None:
    spec = EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.15)
    overload = {"worker_requests": 1, "queue_requests": 2, "retry_after_s": 4}
    async with start_stack(specs=[spec], pool={"overload": overload}) as stack:
        client = stack.client()

        def ask() -> asyncio.Task[Any]:
            return asyncio.create_task(
                client.chat.completions.create(
                    model="simulated", messages=MESSAGES, max_tokens=20, extra_body={"ignore_eos": True}
                )
            )

        assert stack.processor.fleet is not None
        admission = stack.processor.fleet.backends["main"].pool.admission
        assert admission is not None
        asking = []
        for waiting in range(3):
            asking.append(ask())
            await eventually(
                lambda count=waiting: (stack.running(), admission.waiting_requests) == (1, count),  # type: ignore[misc]
                f"{waiting} requests waiting",
            )
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="simulated", messages=MESSAGES)
        assert refused.value.response.headers["retry-after"] == "4"
        assert refused.value.code == "queue_full"
        leaving = asking.pop()
        leaving.cancel()
        await eventually(lambda: admission.waiting_requests == 1, "the client's place in the queue free")
        for answer in await asyncio.gather(*asking):
            assert answer.choices[0].finish_reason == "length"
        await stack.nothing_left()
        assert admission.waiting_requests == 0
