"""vLLM's HTTP server behind a pool of `engine: openai`: OpenAI's clients by their own bytes, Anthropic's translated."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from e2e.stack import Stack, eventually, running_stack
from real_engine import API_KEY, VLLM_HTTP, RealEngine, running_engine

from extproc.envoyconfig.binary import find_envoy

pytestmark = pytest.mark.engines

PATH = "/v1/chat/completions"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 24,
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": CITY}}


@pytest.fixture(scope="module")
def http_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with running_engine(VLLM_HTTP, tmp_path_factory.mktemp("vllm-http") / "engine.log") as running:
        yield running


@contextlib.asynccontextmanager
async def gateway(engine: RealEngine, folder: Path, **pool: Any) -> AsyncIterator[Stack]:
    key = folder / "engine-key"
    key.write_text(API_KEY)
    settings = {
        "engine": "openai",
        "models": [{"name": "tiny", "engine_name": engine.kind.model}],
        "workers": [f"http://{engine.address}"],
        "http": {"api_key": str(key)},
        "load_metrics": {},
        **pool,
    }
    health = {"interval_s": 1.0, "timeout_s": 10.0}
    async with running_stack(find_envoy().path, folder, specs=[], pool=settings, settings={"health": health}) as stack:
        yield stack


async def directly(engine: RealEngine, body: dict[str, Any]) -> str:
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx2.AsyncClient(base_url=f"http://{engine.address}", headers=headers, timeout=60.0) as http:
        return (await http.post(PATH, json=body | {"model": engine.kind.model})).text


def told(stream: str) -> Any:
    """All that a stream says, wherever vLLM cut it: it puts tokens together that are ready at the same time."""
    found = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for each in found for choice in each["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    scores = [score for choice in choices for score in (choice.get("logprobs") or {}).get("content", [])]
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return text, scores, ends, [each["usage"] for each in found if each.get("usage")]


async def test_openais_clients_get_what_the_engine_says(http_engine: RealEngine, tmp_path: Path) -> None:
    async with gateway(http_engine, tmp_path) as stack:
        for extra in ({}, {"stream_options": {"include_usage": True}}, {"logprobs": True, "top_logprobs": 2}):
            body = ASKED | {"stream": True} | extra
            got = (await stack.http.post(PATH, json=body)).text
            assert told(got) == told(await directly(http_engine, body))
            assert '"model":"tiny"' in got
            assert http_engine.kind.model not in got
            assert got.endswith("data: [DONE]\n\n")
        whole = await stack.client().chat.completions.create(**ASKED)
        assert whole.model == "tiny"
        assert whole.choices[0].message.content is not None
        assert "Paris" in whole.choices[0].message.content
        await stack.nothing_left()


async def test_messages_clients_get_the_same_text_and_counts(http_engine: RealEngine, tmp_path: Path) -> None:
    async with gateway(http_engine, tmp_path) as stack:
        chat = await stack.client().chat.completions.create(**ASKED)
        assert chat.usage is not None
        async with anthropic.AsyncAnthropic(
            base_url=f"http://127.0.0.1:{stack.http_port}", api_key="key", max_retries=0
        ) as client:
            request = {name: value for name, value in ASKED.items() if name != "temperature"}
            async with client.messages.stream(**request, extra_body={"temperature": 0}) as stream:
                message = await stream.get_final_message()
            block = message.content[0]
            assert block.type == "text"
            assert block.text == chat.choices[0].message.content
            counted = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
            assert (counted, message.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
            assert message.stop_reason == ("end_turn" if chat.choices[0].finish_reason == "stop" else "max_tokens")
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await client.messages.create(**request | {"messages": [{"role": "user", "content": "word " * 5000}]})
        await stack.nothing_left()


async def test_a_tool_that_must_be_called_is_called_in_either_dialect(http_engine: RealEngine, tmp_path: Path) -> None:
    async with gateway(http_engine, tmp_path) as stack:
        request = ASKED | {
            "max_tokens": 100,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        }
        async with stack.client().chat.completions.stream(**request) as stream:
            completion = await stream.get_final_completion()
        (called,) = completion.choices[0].message.tool_calls or []
        direct = json.loads(await directly(http_engine, request))["choices"][0]["message"]["tool_calls"][0]
        assert (called.function.name, called.function.arguments) == ("f", direct["function"]["arguments"])
        async with (
            anthropic.AsyncAnthropic(
                base_url=f"http://127.0.0.1:{stack.http_port}", api_key="key", max_retries=0
            ) as client,
            client.messages.stream(
                model="tiny",
                messages=ASKED["messages"],
                max_tokens=100,
                tools=[{"name": "f", "input_schema": CITY}],
                tool_choice={"type": "tool", "name": "f"},
            ) as messages,
        ):
            message = await messages.get_final_message()
        block = message.content[-1]
        assert block.type == "tool_use"
        assert block.name == "f"  # the arguments of so small a model are not always of their schema


async def test_refusals_and_the_context_are_the_engines(http_engine: RealEngine, tmp_path: Path) -> None:
    async with gateway(http_engine, tmp_path) as stack:
        client = stack.client()
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**ASKED | {"messages": [{"role": "user", "content": "word " * 5000}]})
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**ASKED, extra_body={"top_k": "many"})
        (model,) = [model async for model in client.models.list()]
        assert model.model_extra == {"max_model_len": http_engine.kind.context_tokens}


async def test_a_client_that_leaves_frees_the_engine(http_engine: RealEngine, tmp_path: Path) -> None:
    async with gateway(http_engine, tmp_path) as stack:
        body = ASKED | {"stream": True, "max_tokens": 1900, "ignore_eos": True}
        async with stack.http.stream("POST", PATH, json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
        await stack.nothing_left()
        fleet = stack.processor.fleet
        assert fleet is not None
        (worker,) = fleet.workers
        reported = worker.reported

        def idle() -> bool:
            return worker.reported not in (None, reported) and worker.reported.running_requests == 0

        await eventually(idle, "the engine at rest", 20.0)
