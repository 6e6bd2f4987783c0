"""Gemini's Interactions through a real Envoy with the official SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import types
from stack import INSTANT, Stack, StartStack
from tokenizers import Tokenizer

from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

POOL = {"chat_template": str(Path(__file__).parent / "data" / "tools.jinja")}
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASKED: dict[str, Any] = {"type": "user_input", "content": [{"type": "text", "text": "What is the weather?"}]}
CALL = 'Hm.</think>I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'


def says(*texts: str) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts)]


def sdk(stack: Stack, version: str = "v1") -> Any:
    """The asynchronous client."""
    url = f"http://127.0.0.1:{stack.http_port}"
    return genai.Client(api_key="key", http_options=types.HttpOptions(base_url=url, api_version=version)).aio


def prompt(stack: Stack) -> str:
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    return tokenizer.decode(list(stack.engines[0].requests[-1].tokenized.input_ids), skip_special_tokens=False)


@pytest.mark.parametrize("shows", [True, False])
async def test_thoughts_text_and_calls_come_and_go_back_with_their_results(
    start_stack: StartStack, shows: bool
) -> None:
    async with start_stack(specs=says(CALL, "So.</think>It is sunny."), pool=POOL) as stack, sdk(stack) as client:
        request: dict[str, Any] = {
            "model": "simulated",
            "tools": [WEATHER],
            "system_instruction": "Be brief.",
            "generation_config": {"thinking_summaries": "auto" if shows else "none", "max_output_tokens": 500},
        }
        first = await client.interactions.create(input=[ASKED], **request)
        thought, said, call = first.steps
        assert (thought.type, bool(thought.summary), bool(thought.signature)) == ("thought", shows, not shows)
        assert (said.content[0].text, call.name, call.arguments) == ("I look.", "weather", {"city": "Zürich"})
        assert (first.status, first.model) == ("requires_action", "simulated")
        assert first.usage.total_thought_tokens > 0
        steps = [step.model_dump(exclude_none=True) for step in first.steps]
        result = {"type": "function_result", "call_id": call.id, "name": "weather", "result": "sunny"}
        second = await client.interactions.create(input=[ASKED, *steps, result], **request)
        assert (second.output_text, second.status) == ("It is sunny.", "completed")
        assert "<think>\nHm.\n</think>\n\nI look.<tool_call>" in prompt(stack)
        await stack.nothing_left()


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_an_interaction_is_streamed(start_stack: StartStack, version: str) -> None:
    async with start_stack(specs=says(CALL), pool=POOL) as stack, sdk(stack, version) as client:
        stream = await client.interactions.create(model="simulated", input=[ASKED], tools=[WEATHER], stream=True)
        events = [event async for event in stream]
        kinds = [event.event_type for event in events]
        assert kinds[:2] == ["interaction.created", "interaction.status_update"]
        assert kinds.count("step.start") == kinds.count("step.stop") == 3
        assert events[-1].interaction.status == "requires_action"
        deltas = [event.delta for event in events if event.event_type == "step.delta"]
        assert "".join([delta.text for delta in deltas if delta.type == "text"]) == "I look."
        arguments = "".join([delta.arguments for delta in deltas if delta.type == "arguments_delta"])
        assert json.loads(arguments) == {"city": "Zürich"}
        assert events[-1].interaction.usage.total_tokens > 0


async def test_what_needs_a_store_is_refused_in_the_sdks_form(start_stack: StartStack) -> None:
    async with start_stack(specs=says("x")) as stack, sdk(stack) as client:
        for status, request in (
            (400, {"model": "simulated", "previous_interaction_id": "x"}),
            (404, {"model": "none"}),
        ):
            with pytest.raises(Exception, match=r"previous_interaction_id|none") as raised:
                await client.interactions.create(input="Hello.", **request)
            assert getattr(raised.value, "status_code", None) == status


async def test_an_answer_that_breaks_off_ends_with_an_error(start_stack: StartStack) -> None:
    spec = EngineSpec(
        prefill_tokens_per_s=0.0,
        decode_step_s=0.01,
        answers=Answers.NATURAL,
        faults=Faults(break_kind=Break.ERROR, break_after=3),
    )
    async with start_stack(specs=[spec]) as stack, sdk(stack) as client:
        events = [event async for event in await client.interactions.create(model="simulated", input="a", stream=True)]
        assert events[-1].event_type == "error"
        assert "injected fault" in events[-1].error.message
        await stack.nothing_left()
