"""Ollama's API through a real Envoy with the official SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ollama
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2
from stack import INSTANT, Stack, StartStack
from tokenizers import Tokenizer

from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

POOL = {"chat_template": str(Path(__file__).parent / "data" / "tools.jinja")}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]
THOUGHT = "The user asks for\nthe weather."
CALLS = (
    f"{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>'
)


def says(*texts: str, **spec: Any) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts, **spec)]


def sdk(stack: Stack) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=f"http://127.0.0.1:{stack.http_port}", timeout=60.0)


def asked(stack: Stack) -> vllm_engine_pb2.GenerateRequest:
    """What the engine was asked last."""
    return stack.engines[0].requests[-1]


def prompt(stack: Stack) -> str:
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    return tokenizer.decode(list(asked(stack).tokenized.input_ids), skip_special_tokens=False)


async def chat(client: ollama.AsyncClient, streams: bool, messages: list[Any], **more: Any) -> ollama.ChatResponse:
    """The answer; of one that was streamed, what its lines say together."""
    if not streams:
        return await client.chat("simulated", messages, **more)
    parts = [part async for part in await client.chat("simulated", messages, stream=True, **more)]
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    whole = parts[-1]
    whole.message.content = "".join([part.message.content or "" for part in parts])
    whole.message.thinking = "".join([part.message.thinking or "" for part in parts]) or None
    whole.message.tool_calls = [call for part in parts for call in part.message.tool_calls or ()] or None
    return whole


@pytest.mark.parametrize("streams", [True, False])
async def test_thinking_text_and_calls_come_and_go_back_with_their_results(
    start_stack: StartStack, streams: bool
) -> None:
    async with start_stack(specs=says(CALLS, "So.</think>It is sunny."), pool=POOL) as stack:
        client = sdk(stack)
        first = await chat(client, streams, ASKED, tools=TOOLS, think=True)
        assert (first.message.content, first.message.thinking) == ("Let me look.", THOUGHT)
        weather, now = [call.function for call in first.message.tool_calls or ()]
        assert (weather.name, weather.arguments, now.name, now.arguments) == ("weather", {"city": "Zürich"}, "now", {})
        assert (first.model, first.done, first.done_reason) == ("simulated", True, "stop")
        assert first.prompt_eval_count == len(asked(stack).tokenized.input_ids)
        assert first.eval_count
        assert first.total_duration is not None
        assert first.total_duration >= (first.prompt_eval_duration or 0) > 0
        results = [
            {"role": "tool", "tool_name": "now", "content": "12:00"},
            {"role": "tool", "tool_name": "weather", "content": "sunny"},
        ]
        second = await chat(client, streams, [*ASKED, first.message, *results], tools=TOOLS)
        assert (second.message.content, second.message.thinking) == ("It is sunny.", "So.")
        said = prompt(stack)
        assert f"<think>\n{THOUGHT}\n</think>\n\nLet me look.<tool_call>" in said
        assert said.index("tool\n12:00") < said.index("tool\nsunny")
        await stack.nothing_left()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_prompt_is_answered(start_stack: StartStack, streams: bool) -> None:
    async with start_stack(specs=says("One two three. Four five.")) as stack:
        client = sdk(stack)
        request: dict[str, Any] = {
            "prompt": "Hello.",
            "system": "Be brief.",
            "options": {"temperature": 0.5, "num_predict": 100, "stop": ["e. Fo"], "num_ctx": 10},
        }
        if streams:
            parts = [part async for part in await client.generate("simulated", stream=True, **request)]
            said, last = "".join([part.response for part in parts]), parts[-1]
        else:
            last = await client.generate("simulated", **request)
            said = last.response
        assert (said, last.done, last.done_reason) == ("One two thre", True, "stop")
        params = asked(stack).sampling_params
        assert (params.temperature, params.max_tokens) == (0.5, 100)
        assert "Be brief." in prompt(stack)
        short = await client.generate("simulated", "Hello.", options={"num_predict": 2})
        assert (short.done_reason, short.eval_count) == ("length", 2)


async def test_the_answers_form_binds_the_engine_and_no_thinking_is_asked_for(start_stack: StartStack) -> None:
    async with start_stack(specs=says('{"city": "Bern"}'), pool=POOL) as stack:
        answer = await chat(sdk(stack), False, ASKED, format=SCHEMA, think=False)
        assert json.loads(answer.message.content or "") == {"city": "Bern"}
        assert json.loads(asked(stack).sampling_params.json_schema) == SCHEMA
        assert prompt(stack).endswith("<think>\n\n</think>\n\n")


async def test_models_are_listed_for_the_sdk(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        client = sdk(stack)
        assert [model.model for model in (await client.list()).models] == ["simulated"]
        assert (await client.show("simulated")).capabilities == ["completion"]
        with pytest.raises(ollama.ResponseError, match="none") as raised:
            await client.show("none")
        assert raised.value.status_code == 404
        assert (await stack.http.get("/api/version")).json()["version"]


async def test_what_is_not_supported_is_refused_in_the_sdks_form(start_stack: StartStack) -> None:
    async with start_stack(specs=says("x")) as stack:
        client = sdk(stack)

        async def refused(status: int, **request: Any) -> str:
            with pytest.raises(ollama.ResponseError) as raised:
                await client.chat(**{"model": "simulated", "messages": ASKED, **request})
            assert raised.value.status_code == status
            return raised.value.error

        image = [{"role": "user", "content": "a", "images": ["AAAA"]}]
        assert "messages[0].images[0]" in await refused(400, messages=image)
        assert "tools" in await refused(400, tools=TOOLS)
        assert "none" in await refused(404, model="none")
        with pytest.raises(ollama.ResponseError) as raised:
            await client.pull("simulated")
        assert raised.value.status_code == 404


async def test_a_worker_that_fails_is_told_with_its_status(start_stack: StartStack) -> None:
    spec = EngineSpec(**INSTANT, faults=Faults(refuse_status=8, details="full"))
    async with start_stack(specs=[spec]) as stack:
        with pytest.raises(ollama.ResponseError) as raised:
            await sdk(stack).chat("simulated", ASKED)
        assert raised.value.status_code == 429


async def test_an_answer_that_breaks_off_raises_in_the_sdk(start_stack: StartStack) -> None:
    spec = EngineSpec(
        prefill_tokens_per_s=0.0,
        decode_step_s=0.01,
        answers=Answers.NATURAL,
        faults=Faults(break_kind=Break.ERROR, break_after=3),
    )
    async with start_stack(specs=[spec]) as stack:
        with pytest.raises(ollama.ResponseError, match="injected fault"):
            await chat(sdk(stack), True, ASKED)
        await stack.nothing_left()
