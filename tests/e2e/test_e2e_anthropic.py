"""Anthropic Messages through a real Envoy with the official SDK in strict mode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pydantic
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2
from stack import INSTANT, Stack, StartStack, eventually
from tokenizers import Tokenizer

from extproc.routing.worker import WorkerState
from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

POOL = {"chat_template": str(Path(__file__).parent / "data" / "tools.jinja")}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Zürich?"}]
HELLO: dict[str, Any] = {"model": "simulated", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello."}]}
THOUGHT = "The user asks for\nthe weather."
CALLS = (
    f"{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>'
)


def says(*texts: str, **spec: Any) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts, **spec)]


@contextlib.asynccontextmanager
async def sdk(stack: Stack, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    settings = {"max_retries": 0, "timeout": 60.0, **options}
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{stack.http_port}", api_key="key", _strict_response_validation=True, **settings
    ) as client:
        yield client


def asked(stack: Stack) -> vllm_engine_pb2.GenerateRequest:
    """What the engine was asked last."""
    return stack.engines[0].requests[-1]


def prompt(stack: Stack) -> str:
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    return tokenizer.decode(list(asked(stack).tokenized.input_ids), skip_special_tokens=False)


@pytest.mark.parametrize("streamed", [True, False])
async def test_thinking_text_and_calls_come_and_go_back_with_their_results(
    start_stack: StartStack, streamed: bool
) -> None:
    async with start_stack(specs=says(CALLS, "So.</think>It is sunny."), pool=POOL) as stack, sdk(stack) as client:
        request: dict[str, Any] = {"model": "simulated", "max_tokens": 500, "tools": [WEATHER, NOW]}

        async def answer(messages: list[Any]) -> anthropic.types.Message:
            if not streamed:
                return await client.messages.create(messages=messages, **request)
            async with client.messages.stream(messages=messages, **request) as stream:
                return await stream.get_final_message()

        first = await answer(ASKED)
        thinking, text, weather, now = first.content
        assert thinking.type == "thinking"
        assert (thinking.thinking, bool(thinking.signature)) == (THOUGHT, True)
        assert text.type == "text"
        assert text.text == "Let me look."
        assert weather.type == now.type == "tool_use"
        assert (weather.name, weather.input, now.name, now.input) == ("weather", {"city": "Zürich"}, "now", {})
        assert weather.id != now.id
        assert weather.id.startswith("toolu_")
        assert (first.stop_reason, first.model) == ("tool_use", "simulated")
        assert first.id.startswith("msg_")
        assert first.usage.output_tokens_details is not None
        assert 0 < first.usage.output_tokens_details.thinking_tokens < first.usage.output_tokens
        results = [
            {"type": "tool_result", "tool_use_id": now.id, "content": "12:00"},
            {
                "type": "tool_result",
                "tool_use_id": weather.id,
                "content": [{"type": "text", "text": "no such city"}],
                "is_error": True,
            },
            {"type": "text", "text": "Never mind."},
        ]
        second = await answer([*ASKED, first.to_param(), {"role": "user", "content": results}])
        assert [block.type for block in second.content] == ["thinking", "text"]
        assert second.stop_reason == "end_turn"
        said = prompt(stack)
        assert f"<think>\n{THOUGHT}\n</think>\n\nLet me look.<tool_call>" in said
        assert '{"name": "weather", "arguments": {"city": "Zürich"}}' in said
        assert said.index("tool\n12:00") < said.index("tool\nError: no such city") < said.index("user\nNever mind.")
        await stack.nothing_left()


async def test_counts_leave_out_what_the_cache_had(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One.", "Two.")) as stack, sdk(stack) as client:
        counted = await client.messages.count_tokens(model="simulated", messages=ASKED, system="Be brief. " * 20)
        request: dict[str, Any] = {**HELLO, "messages": ASKED, "system": "Be brief. " * 20}
        first = (await client.messages.create(**request)).usage
        assert (first.input_tokens, first.cache_read_input_tokens) == (counted.input_tokens, 0)
        async with client.messages.stream(**request) as stream:
            events = [event async for event in stream]
            usage = (await stream.get_final_message()).usage
        begun = next(event for event in events if event.type == "message_start")
        assert begun.message.usage.input_tokens == counted.input_tokens
        assert usage.cache_read_input_tokens == (counted.input_tokens - 1) // 16 * 16 > 0
        assert usage.input_tokens == counted.input_tokens - usage.cache_read_input_tokens
        assert len(asked(stack).tokenized.input_ids) == counted.input_tokens


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "k", "anthropic-version": "2023-06-01"},
        {"authorization": "Bearer k", "anthropic-version": "2026-10-21"},
        {},
    ],
    ids=["2023", "2026", "neither"],
)
async def test_both_versions_and_both_ways_of_sending_the_key_are_served(
    start_stack: StartStack, headers: dict[str, str]
) -> None:
    async with start_stack(specs=says("Hi.")) as stack:
        for stream in (True, False):
            answer = await stack.http.post(
                "/v1/messages?beta=true",
                json={**HELLO, "stream": stream, "temperature": 0.5},
                headers={**headers, "x-request-id": "id-1"},
            )
            assert answer.status_code == 200
            assert answer.headers["content-type"] == ("text/event-stream" if stream else "application/json")
            assert answer.headers["request-id"] == "id-1"
            assert asked(stack).sampling_params.temperature == 0.5
        listed = (await stack.http.get("/v1/models", headers=headers)).json()
        assert ("has_more" in listed) == bool(headers)
        assert listed["data"][0]["id"] == "simulated"


async def test_models_are_listed_for_the_sdk(start_stack: StartStack) -> None:
    async with start_stack() as stack, sdk(stack) as client:
        [model] = [model async for model in client.models.list()]
        assert (await client.models.retrieve("simulated")) == model
        assert model.max_input_tokens
        with pytest.raises(anthropic.NotFoundError, match="none"):
            await client.models.retrieve("none")


async def test_the_stop_sequence_that_matched_is_told(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One two three. Four five.")) as stack, sdk(stack) as client:
        for _ in range(2):
            message = await client.messages.create(**HELLO, stop_sequences=["zzz", "e. Fo"])
            assert [block.type for block in message.content] == ["text"]
            assert message.content[0].type == "text"
            assert message.content[0].text == "One two thre"
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "e. Fo")
        short = await client.messages.create(**{**HELLO, "max_tokens": 2})
        assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "tool", "name": "weather"}, '{"city": "Bern"}'),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            '[{"name": "weather", "parameters": {"city": "Bern"}}]',
        ),
    ],
    ids=["tool", "any"],
)
async def test_a_call_that_must_come_binds_the_engine(start_stack: StartStack, choice: Any, said: str) -> None:
    async with start_stack(specs=says(said), pool=POOL) as stack, sdk(stack) as client:
        message = await client.messages.create(**HELLO, tools=[WEATHER, NOW], tool_choice=choice)
        [call] = message.content
        assert call.type == "tool_use"
        assert (call.name, call.input, message.stop_reason) == ("weather", {"city": "Bern"}, "tool_use")
        schema = json.loads(asked(stack).sampling_params.json_schema)
        if choice["type"] == "any":
            assert (schema["type"], schema["maxItems"]) == ("array", 1)
        else:
            assert schema == WEATHER["input_schema"]


async def test_no_tool_is_offered_and_no_thinking_asked_for_where_the_client_says_so(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Sunny."), pool=POOL) as stack, sdk(stack) as client:
        message = await client.messages.create(
            **HELLO, tools=[WEATHER], tool_choice={"type": "none"}, thinking={"type": "disabled"}
        )
        assert [block.type for block in message.content] == ["text"]
        assert "weather" not in prompt(stack)
        assert prompt(stack).endswith("<think>\n\n</think>\n\n")


async def test_thinking_that_is_not_shown_is_still_there_in_the_next_turn(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Secret.</think>Hi.", "</think>Yes."), pool=POOL) as stack, sdk(stack) as client:
        first = await client.messages.create(**HELLO, thinking={"type": "adaptive", "display": "omitted"})
        thinking, text = first.content
        assert thinking.type == "thinking"
        assert (thinking.thinking, text.type) == ("", "text")
        again: list[Any] = [*HELLO["messages"], first.to_param(), {"role": "user", "content": "Really?"}]
        await client.messages.create(**{**HELLO, "messages": again})
        assert "<think>\nSecret.\n</think>\n\nHi." in prompt(stack)


class Answer(pydantic.BaseModel):
    degrees: int


async def test_structured_output_is_parsed_by_the_sdk(start_stack: StartStack) -> None:
    async with start_stack(specs=says('{"degrees": 21}')) as stack, sdk(stack) as client:
        message = await client.messages.parse(**HELLO, output_format=Answer)
        assert message.parsed_output == Answer(degrees=21)
        assert json.loads(asked(stack).sampling_params.json_schema)["required"] == ["degrees"]


async def test_an_answer_that_was_begun_is_continued(start_stack: StartStack) -> None:
    async with start_stack(specs=says(" 42.")) as stack, sdk(stack) as client:
        begun: list[Any] = [*HELLO["messages"], {"role": "assistant", "content": "The answer is"}]
        message = await client.messages.create(**{**HELLO, "messages": begun})
        assert message.content[0].type == "text"
        assert message.content[0].text == " 42."
        assert prompt(stack).endswith("assistant\nThe answer is")


async def test_what_is_not_supported_is_refused_in_the_sdks_form(start_stack: StartStack) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    async with start_stack(specs=says("x")) as stack, sdk(stack) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[1\]") as refused:
            await client.messages.create(
                **{**HELLO, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]}
            )
        assert refused.value.request_id
        assert refused.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="tools"):
            await client.messages.create(**HELLO, tools=[WEATHER])
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await client.messages.create(**{**HELLO, "messages": [{"role": "user", "content": "word " * 200_000}]})
        with pytest.raises(anthropic.NotFoundError, match="none"):
            await client.messages.create(**{**HELLO, "model": "none"})
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.list()


async def test_a_worker_that_fails_is_an_error_of_the_right_class(start_stack: StartStack) -> None:
    spec = EngineSpec(**INSTANT, faults=Faults(refuse_status=8, details="full"))
    async with start_stack(specs=[spec]) as stack, sdk(stack) as client:
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**HELLO)


async def test_no_worker_at_all_is_an_overload(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT)]) as stack, sdk(stack) as client:
        await stack.engines[0].stop()
        assert stack.processor.fleet is not None
        [worker] = stack.processor.fleet.workers
        await eventually(lambda: worker.state is not WorkerState.READY, "the worker away")
        with pytest.raises(anthropic.InternalServerError) as raised:
            await client.messages.create(**HELLO)
        assert (raised.value.status_code, raised.value.type) == (529, "overloaded_error")
        assert "retry-after" in raised.value.response.headers


async def test_an_answer_that_breaks_off_raises_in_the_sdk(start_stack: StartStack) -> None:
    spec = EngineSpec(
        prefill_tokens_per_s=0.0,
        decode_step_s=0.01,
        answers=Answers.NATURAL,
        faults=Faults(break_kind=Break.ERROR, break_after=3),
    )
    async with start_stack(specs=[spec]) as stack, sdk(stack) as client:
        with pytest.raises(anthropic.APIStatusError, match="injected fault") as raised:
            async with client.messages.stream(**HELLO) as stream:
                await stream.get_final_message()
        assert raised.value.type == "api_error"
        await stack.nothing_left()
