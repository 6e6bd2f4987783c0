"""Tools, reasoning and structured output through a real Envoy with the official SDK in strict mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from smg_grpc_proto.generated import vllm_engine_pb2
from stack import INSTANT, Stack, StartStack
from tokenizers import Tokenizer

from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

POOL = {"chat_template": str(Path(__file__).parent / "data" / "tools.jinja")}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ASKED = [{"role": "user", "content": "What is the weather in Zürich?"}]
THOUGHT = "The user asks for\nthe weather."
CALLS = (
    f"{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>'
)


def says(*texts: str, **spec: Any) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts, **spec)]


def asked(stack: Stack) -> vllm_engine_pb2.GenerateRequest:
    """What the engine was asked last."""
    return stack.engines[0].requests[-1]


def prompt(stack: Stack) -> str:
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    return tokenizer.decode(list(asked(stack).tokenized.input_ids), skip_special_tokens=False)


async def test_a_streamed_answer_has_reasoning_text_and_calls(start_stack: StartStack) -> None:
    async with start_stack(specs=says(CALLS), pool=POOL) as stack:
        async with stack.client().chat.completions.stream(
            model="simulated", messages=ASKED, tools=[WEATHER, NOW], stream_options={"include_usage": True}
        ) as stream:
            kinds = [event.type async for event in stream]
            completion = await stream.get_final_completion()
        assert kinds.count("tool_calls.function.arguments.done") == 2
        assert kinds.count("tool_calls.function.arguments.delta") > 2
        choice = completion.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me look."
        assert choice.message.model_extra is not None
        assert choice.message.model_extra["reasoning_content"] == THOUGHT
        calls = choice.message.tool_calls or []
        assert [(call.function.name, call.function.arguments) for call in calls] == [
            ("weather", '{"city": "Zürich"}'),
            ("now", "{}"),
        ]
        assert len({call.id for call in calls}) == 2
        usage = completion.usage
        assert usage is not None
        assert usage.completion_tokens_details is not None
        reasoning = usage.completion_tokens_details.reasoning_tokens
        assert reasoning is not None
        assert 0 < reasoning < usage.completion_tokens
        assert '"name": "weather"' in prompt(stack)
        await stack.nothing_left()


async def test_a_whole_answer_and_the_turns_after_it(start_stack: StartStack) -> None:
    async with start_stack(specs=says(CALLS, "So.</think>It is sunny."), pool=POOL) as stack:
        client = stack.client()
        first = await client.chat.completions.create(model="simulated", messages=ASKED, tools=[WEATHER, NOW])
        message = first.choices[0].message
        calls = message.tool_calls or []
        assert all(isinstance(call, ChatCompletionMessageFunctionToolCall) for call in calls)
        results = [{"role": "tool", "tool_call_id": call.id, "content": "21 degrees"} for call in calls]
        again: list[Any] = [*ASKED, message.model_dump(exclude_none=True), *results]
        second = await client.chat.completions.create(model="simulated", messages=again, tools=[WEATHER, NOW])
        assert second.choices[0].message.content == "It is sunny."
        assert second.choices[0].finish_reason == "stop"
        said = prompt(stack)
        assert f"<think>\n{THOUGHT}\n</think>\n\nLet me look.<tool_call>" in said
        assert '{"name": "weather", "arguments": {"city": "Zürich"}}' in said
        assert said.count("<|im_start|>tool\n21 degrees<|im_end|>") == 2


async def test_reasoning_can_be_switched_off(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Sunny."), pool=POOL) as stack:
        answer = await stack.client().chat.completions.create(
            model="simulated", messages=ASKED, reasoning_effort="none"
        )
        assert answer.choices[0].message.content == "Sunny."
        assert prompt(stack).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("choice", "said", "name"),
    [
        ({"type": "function", "function": {"name": "weather"}}, '{"city": "Bern"}', "weather"),
        ("required", '[{"name": "weather", "parameters": {"city": "Bern"}}]', "weather"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOW]}},
            '[{"name": "now", "parameters": {}}]',
            "now",
        ),
    ],
)
async def test_a_call_that_must_come_binds_the_engine(
    start_stack: StartStack, choice: Any, said: str, name: str
) -> None:
    async with start_stack(specs=says(said), pool=POOL) as stack:
        answer = await stack.client().chat.completions.create(
            model="simulated", messages=ASKED, tools=[WEATHER, NOW], tool_choice=choice, parallel_tool_calls=False
        )
        calls = answer.choices[0].message.tool_calls or []
        assert isinstance(calls[0], ChatCompletionMessageFunctionToolCall)
        assert [call.function.name for call in calls if call.type == "function"] == [name]
        assert answer.choices[0].finish_reason == "tool_calls"
        schema = json.loads(asked(stack).sampling_params.json_schema)
        if choice == "required":
            assert (schema["type"], schema["maxItems"], len(schema["items"]["anyOf"])) == ("array", 1, 2)
        elif name == "now":
            assert [one["properties"]["name"]["enum"] for one in schema["items"]["anyOf"]] == [["now"]]
            assert '"name": "weather"' not in prompt(stack)
        else:
            assert schema == WEATHER["function"]["parameters"]


class Answer(pydantic.BaseModel):
    degrees: int


async def test_structured_output_is_parsed_by_the_sdk(start_stack: StartStack) -> None:
    async with start_stack(specs=says('{"degrees": 21}'), pool=POOL) as stack:
        answer = await stack.client().chat.completions.parse(model="simulated", messages=ASKED, response_format=Answer)
        assert answer.choices[0].message.parsed == Answer(degrees=21)
        assert json.loads(asked(stack).sampling_params.json_schema)["required"] == ["degrees"]
        await stack.client().chat.completions.create(
            model="simulated", messages=ASKED, response_format={"type": "json_object"}
        )
        assert asked(stack).sampling_params.json_object


async def test_what_the_model_does_not_take_is_refused_by_name(start_stack: StartStack) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    async with start_stack(specs=says("x")) as stack:
        client = stack.client()
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="simulated", messages=ASKED, tools=[WEATHER])
        assert refused.value.param == "tools"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="simulated", messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]
            )
        assert refused.value.param == "messages[0].content[1].type"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="simulated", messages=ASKED, tool_choice="required")
        assert refused.value.param == "tool_choice"
