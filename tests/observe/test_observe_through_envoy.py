"""Metrics agree with what clients sent through a real Envoy and what they got."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from e2e.stack import Stack, running_stack
from prometheus_client.parser import text_string_to_metric_families

from extproc.simulator.spec import EngineSpec

pytestmark = pytest.mark.envoy

SLOW = {"prefill_tokens_per_s": 0.0, "decode_step_s": 0.05}


def body(*, stream: bool, model: str = "simulated", max_tokens: int = 5) -> dict[str, object]:
    messages = [{"role": "user", "content": "Count to ten."}]
    return {"model": model, "messages": messages, "stream": stream, "max_tokens": max_tokens, "ignore_eos": True}


async def samples(stack: Stack) -> Counter[tuple[str, tuple[tuple[str, str], ...]]]:
    text = (await stack.processor.metrics()).decode()
    return Counter(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


async def leave_after_first_piece(stack: Stack) -> None:
    sent = body(stream=True, max_tokens=400)
    async with stack.http.stream("POST", "/v1/chat/completions", json=sent) as answer:
        assert answer.status_code == 200
        async for _ in answer.aiter_bytes():
            return


async def leave_before_the_answer(stack: Stack) -> None:
    call = asyncio.create_task(stack.http.post("/v1/chat/completions", json=body(stream=False, max_tokens=400)))
    while not stack.running():  # noqa: ASYNC110 - in another part of the process, which has no event for it
        await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_what_was_sent_is_what_was_counted(envoy_binary: Path, tmp_path: Path) -> None:
    specs = [EngineSpec(**SLOW), EngineSpec(**SLOW)]
    async with running_stack(envoy_binary, tmp_path, specs=specs) as stack:

        async def post(**fields: object) -> int:
            return (await stack.http.post("/v1/chat/completions", **fields)).status_code

        await stack.nothing_left()  # the exchange that showed that the stack is up may end late
        before = await samples(stack)
        sent = [
            *(post(json=body(stream=True)) for _ in range(7)),
            *(post(json=body(stream=False)) for _ in range(5)),
            *(post(content=b"{") for _ in range(4)),
            *(post(json=body(stream=True, model="other")) for _ in range(3)),
        ]
        statuses = Counter(await asyncio.gather(*sent))
        assert statuses == {200: 12, 400: 4, 404: 3}
        for _ in range(2):
            await leave_after_first_piece(stack)
            await stack.nothing_left()
        await leave_before_the_answer(stack)
        await stack.nothing_left()
        assert (await stack.http.get("/v1/models/simulated")).status_code == 200
        await stack.nothing_left()

        difference = await samples(stack)
        difference.subtract(before)
        counted = {
            tuple(value for _, value in labels): count
            for (name, labels), count in difference.items()
            if name == "extproc_requests_total" and count and ("operation", "list_models") not in labels
        }
        # error_type, model, operation, status
        assert counted == {
            ("", "simulated", "chat", "2xx"): 12,
            ("invalid_request", "unknown", "chat", "4xx"): 4,
            ("model_not_found", "unknown", "chat", "4xx"): 3,
            ("cancelled", "simulated", "chat", "2xx"): 2,
            ("cancelled", "simulated", "chat", ""): 1,
            ("", "unknown", "get_model", "2xx"): 1,
        }
        usage = {
            dict(labels)["gen_ai_token_type"]: count
            for (name, labels), count in difference.items()
            if name == "gen_ai_client_token_usage_sum"
        }
        assert usage["output"] == 12 * 5
        assert usage["input"] > 12 * 5
        ones = {name: count for (name, labels), count in difference.items() if not labels}
        assert ones["extproc_exchanges_in_flight"] == 0
        assert ones["extproc_held_body_bytes"] == 0
        streams = "gen_ai_server_time_to_first_token_seconds_count"
        assert sum(count for (name, _), count in difference.items() if name == streams) == 7


async def test_workers_are_shown_as_they_are(envoy_binary: Path, tmp_path: Path) -> None:
    async with running_stack(envoy_binary, tmp_path, specs=[EngineSpec(**SLOW), EngineSpec(**SLOW)]) as stack:
        calls = [
            asyncio.create_task(stack.http.post("/v1/chat/completions", json=body(stream=True, max_tokens=40)))
            for _ in range(4)
        ]
        while stack.running() < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        shown = await samples(stack)
        running = [count for (name, _), count in shown.items() if name == "extproc_worker_running_requests"]
        assert running == [2, 2]
        assert [count for (name, _), count in shown.items() if name == "extproc_worker_ready"] == [1, 1]
        assert shown[("extproc_exchanges_in_flight", ())] == 4
        assert shown[("extproc_transport_streams", ())] >= 4
        assert shown[("extproc_transport_connections", ())] >= 1
        await asyncio.gather(*calls)
