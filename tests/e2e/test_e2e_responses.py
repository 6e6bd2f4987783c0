"""OpenAI Responses through a real Envoy with the official SDK in strict mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2
from stack import INSTANT, Stack, StartStack
from tokenizers import Tokenizer

from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

POOL = {"chat_template": str(Path(__file__).parent / "data" / "tools.jinja")}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
SQL: dict[str, Any] = {"type": "custom", "name": "sql", "description": "Any query."}
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]
THOUGHT = "The user asks for\nthe weather."
CALLS = (
    f"{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n'
    '{"name": "sql", "arguments": {"input": "select 1"}}\n</tool_call>'
)


def says(*texts: str, **spec: Any) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts, **spec)]


def asked(stack: Stack) -> vllm_engine_pb2.GenerateRequest:
    """What the engine was asked last."""
    return stack.engines[0].requests[-1]


def prompt(stack: Stack) -> str:
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    return tokenizer.decode(list(asked(stack).tokenized.input_ids), skip_special_tokens=False)


@pytest.mark.parametrize("streamed", [True, False])
async def test_reasoning_text_and_calls_come_and_go_back_with_their_outputs(
    start_stack: StartStack, streamed: bool
) -> None:
    async with start_stack(specs=says(CALLS, "So.</think>It is sunny."), pool=POOL) as stack:
        client = stack.client()
        request: dict[str, Any] = {"model": "simulated", "instructions": "Be brief.", "tools": [WEATHER, SQL]}

        async def answer(items: list[Any]) -> Any:
            if not streamed:
                return await client.responses.create(input=items, **request)
            async with client.responses.stream(input=items, **request) as stream:
                return await stream.get_final_response()

        first = await answer(ASKED)
        reasoning, message, weather, sql = first.output
        assert [item.type for item in first.output] == [
            "reasoning",
            "message",
            "function_call",
            "custom_tool_call",
        ]
        assert [part.text for part in reasoning.content] == [THOUGHT]
        assert first.output_text == "Let me look."
        assert (weather.name, weather.arguments) == ("weather", '{"city": "Zürich"}')
        assert (sql.name, sql.input) == ("sql", "select 1")
        assert (first.status, first.store, first.model) == ("completed", False, "simulated")
        assert message.id != reasoning.id
        assert 0 < first.usage.output_tokens_details.reasoning_tokens < first.usage.output_tokens
        second = await answer(
            [
                *ASKED,
                *first.output,
                {"type": "custom_tool_call_output", "call_id": sql.call_id, "output": "1 row"},
                {"type": "function_call_output", "call_id": weather.call_id, "output": "21 degrees"},
            ]
        )
        assert second.output_text == "It is sunny."
        said = prompt(stack)
        assert "system\nBe brief." in said
        assert f"<think>\n{THOUGHT}\n</think>\n\nLet me look.<tool_call>" in said
        assert '{"name": "weather", "arguments": {"city": "Zürich"}}' in said
        assert said.index("tool\n1 row") < said.index("tool\n21 degrees")
        await stack.nothing_left()


async def test_reasoning_is_carried_by_a_blob_alone(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Secret.</think>Hi.", "</think>Yes."), pool=POOL) as stack:
        client = stack.client()
        first = await client.responses.create(
            model="simulated", input="Hello.", include=["reasoning.encrypted_content"], store=False
        )
        items: list[Any] = [item.to_dict() for item in first.output]
        del items[0]["content"]
        await client.responses.create(
            model="simulated", input=[{"role": "user", "content": "Hello."}, *items, {"role": "user", "content": "Go."}]
        )
        assert "<think>\nSecret.\n</think>\n\nHi." in prompt(stack)


async def test_an_answer_that_is_cut_short_is_incomplete(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One two three four.")) as stack:
        client = stack.client()
        answer = await client.responses.create(model="simulated", input="Count.", max_output_tokens=2)
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        async with client.responses.stream(model="simulated", input="Count.", max_output_tokens=2) as stream:
            seen = [event.type async for event in stream]
        assert seen[-1] == "response.incomplete"


async def test_prompt_tokens_are_counted_as_the_engine_gets_them(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One.", "Two.")) as stack:
        client = stack.client()
        counted = await client.responses.input_tokens.count(model="simulated", input=ASKED, instructions="Be brief.")
        for cached in (0, (counted.input_tokens - 1) // 16 * 16):
            answer = await client.responses.create(model="simulated", input=ASKED, instructions="Be brief.")
            assert answer.usage is not None
            assert answer.usage.input_tokens == counted.input_tokens == len(asked(stack).tokenized.input_ids)
            assert answer.usage.input_tokens_details.cached_tokens == cached


async def test_log_probabilities_of_the_text(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One two.")) as stack:
        async with stack.client().responses.stream(
            model="simulated", input="Count.", include=["message.output_text.logprobs"], top_logprobs=2
        ) as stream:
            deltas = [event async for event in stream if event.type == "response.output_text.delta"]
            answer = await stream.get_final_response()
        assert "".join(entry.token for delta in deltas for entry in delta.logprobs) == "One two."
        message = answer.output[0]
        assert message.type == "message"
        part = message.content[0]
        assert part.type == "output_text"
        assert {len(entry.top_logprobs) for entry in part.logprobs or []} == {2}


class Answer(pydantic.BaseModel):
    degrees: int


async def test_structured_output_is_parsed_by_the_sdk(start_stack: StartStack) -> None:
    async with start_stack(specs=says('{"degrees": 21}')) as stack:
        answer = await stack.client().responses.parse(model="simulated", input=ASKED, text_format=Answer)
        assert answer.output_parsed == Answer(degrees=21)
        assert json.loads(asked(stack).sampling_params.json_schema)["required"] == ["degrees"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "function", "name": "weather"}, '{"city": "Bern"}'),
        ("required", '[{"name": "weather", "parameters": {"city": "Bern"}}]'),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            '[{"name": "weather", "parameters": {"city": "Bern"}}]',
        ),
    ],
)
async def test_a_call_that_must_come_binds_the_engine(start_stack: StartStack, choice: Any, said: str) -> None:
    async with start_stack(specs=says(said), pool=POOL) as stack:
        answer = await stack.client().responses.create(
            model="simulated", input=ASKED, tools=[WEATHER, SQL], tool_choice=choice, parallel_tool_calls=False
        )
        [call] = answer.output
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bern"})
        assert asked(stack).sampling_params.json_schema


async def test_what_needs_a_memory_is_refused_with_its_code(start_stack: StartStack) -> None:
    async with start_stack(specs=says("x")) as stack:
        client = stack.client()
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="simulated", input="a", previous_response_id="resp_1")
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="simulated", input="a", conversation="conv_1")
        assert refused.value.param == "conversation"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="simulated", input="a", tools=[{"type": "web_search"}])
        assert refused.value.param == "tools[0].type"
        image: Any = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="simulated", input=[{"role": "user", "content": [image]}])
        assert refused.value.param == "input[0].content[0].type"
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="none", input="a")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_1")


async def test_an_answer_that_breaks_off_is_a_failure(start_stack: StartStack) -> None:
    spec = EngineSpec(
        prefill_tokens_per_s=0.0,
        decode_step_s=0.01,
        answers=Answers.NATURAL,
        faults=Faults(break_kind=Break.ERROR, break_after=3),
    )
    async with start_stack(specs=[spec]) as stack:
        client = stack.client()
        async with client.responses.stream(model="simulated", input="a") as stream:
            events = [event async for event in stream]
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert (last.response.error.code, last.response.status) == ("server_error", "failed")
        await stack.nothing_left()
