"""Every feature through every dialect: the same request reaches the engine, and the same answer the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from model_engines import CALLS, THOUGHT, model_engines
from smg_grpc_proto.generated import vllm_engine_pb2
from speakers import TOOLS, Asked, Results, Seen, Speaker
from speakers_anthropic import Anthropic
from speakers_google import Gemini, Interactions
from speakers_ollama import Ollama
from speakers_openai import Chat, Responses
from stack import Stack
from tokenizers import Tokenizer

from extproc.simulator.spec import OWN_MODEL

SPEAKERS: Mapping[str, Callable[[str], Speaker]] = {
    "chat": Chat,
    "responses": Responses,
    "anthropic": Anthropic,
    "gemini": Gemini,
    "interactions": Interactions,
    "ollama": Ollama,
}
"""By dialect, made with the gateway's URL."""

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("dialect", SPEAKERS),
    pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"]),
]

TOKENIZER = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
SCHEMA = {
    "type": "object",
    "properties": {"degrees": {"type": "integer"}},
    "required": ["degrees"],
    "additionalProperties": False,
}
USER = "<|im_start|>user\nWhat is the weather in Zürich?<|im_end|>\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(envoy_binaries: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with model_engines(envoy_binaries["1.40"], tmp_path_factory.mktemp("matrix")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def speaker(stack: Stack, dialect: str) -> AsyncIterator[Speaker]:
    one = SPEAKERS[dialect](f"http://127.0.0.1:{stack.http_port}")
    yield one
    await one.close()


def asked_of(stack: Stack, model: str) -> vllm_engine_pb2.GenerateRequest:
    """What the model's engine was asked last."""
    return asked_by(stack, model)[-1]


def asked_by(stack: Stack, model: str) -> Sequence[vllm_engine_pb2.GenerateRequest]:
    """All that the model's engine was asked."""
    return next(engine for engine in stack.engines if engine.engine.spec.model == model).requests


def prompt_of(stack: Stack, model: str) -> str:
    ids = list(asked_of(stack, model).tokenized.input_ids)
    return TOKENIZER.decode(ids, skip_special_tokens=False)


def offered(prompt: str) -> list[tuple[str, Any]]:
    """Names and parameters of the tools that a prompt offers. SDKs put keys in an order of their own."""
    functions = [json.loads(line)["function"] for line in prompt.splitlines() if line.startswith('{"type":')]
    return [(function["name"], function["parameters"]) for function in functions]


def needs(speaker: Speaker, form: str) -> None:
    if form in speaker.cannot:
        pytest.skip(f"the dialect has no form for it: {form}")


async def test_a_system_prompt_and_earlier_turns_stand_where_they_were_said(
    stack: Stack, speaker: Speaker, streamed: bool
) -> None:
    first = await speaker.ask(Asked(model="plain", system="Be brief."), streamed=streamed)
    await speaker.ask(
        Asked(model="plain", system="Be brief.", turns=("What is the weather in Zürich?", first, "Again.")),
        streamed=streamed,
    )
    assert prompt_of(stack, "plain") == (
        f"<|im_start|>system\nBe brief.<|im_end|>\n{USER}"
        "<|im_start|>assistant\nHello, wörld! 🚀<|im_end|>\n<|im_start|>user\nAgain.<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_reasoning_text_and_parallel_calls_come_in_their_form(
    stack: Stack, speaker: Speaker, streamed: bool
) -> None:
    seen = await speaker.ask(Asked(model="calls", tools=True), streamed=streamed)
    assert (seen.reasoning, seen.text) == (THOUGHT, "Let me look.")
    assert seen.calls == (("weather", {"city": "Zürich"}), ("now", {}))
    assert len(set(seen.call_ids)) == 2 or "ids" in speaker.cannot
    assert seen.finish == speaker.finishes["tool_calls"]
    assert offered(prompt_of(stack, "calls")) == list(TOOLS.items())


async def test_results_come_back_in_their_order_and_errors_as_errors(
    stack: Stack, speaker: Speaker, streamed: bool
) -> None:
    first = await speaker.ask(Asked(model="calls", tools=True), streamed=streamed)
    results = Results(first, ((1, "12:00", False), (0, "no such city", True)))
    seen = await speaker.ask(
        Asked(model="says", tools=True, turns=("What is the weather in Zürich?", first, results)), streamed=streamed
    )
    assert (seen.reasoning, seen.text, seen.calls) == ("So.", "It is sunny.", ())
    assert seen.finish == speaker.finishes["stop"]
    _, _, said = prompt_of(stack, "says").partition(USER)
    assert said == (
        f"<|im_start|>assistant\n<think>\n{THOUGHT}\n</think>\n\nLet me look."
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n12:00<|im_end|>\n<|im_start|>tool\nError: no such city<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


async def test_one_of_the_tools_must_be_called(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    needs(speaker, "required")
    seen = await speaker.ask(Asked(model="must", tools=True, choice="required"), streamed=streamed)
    assert seen.calls == (("weather", {"city": "Bern"}),)
    assert seen.finish == speaker.finishes["tool_calls"]
    schema = json.loads(asked_of(stack, "must").sampling_params.json_schema)
    assert schema["type"] == "array"
    assert [one["properties"]["name"]["enum"] for one in schema["items"]["anyOf"]] == [["weather"], ["now"], ["today"]]
    assert "maxItems" not in schema


async def test_no_more_than_one_call_is_asked_for(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    needs(speaker, "parallel")
    await speaker.ask(Asked(model="must", tools=True, choice="required", parallel=False), streamed=streamed)
    assert json.loads(asked_of(stack, "must").sampling_params.json_schema)["maxItems"] == 1


async def test_a_named_tool_must_be_called(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    needs(speaker, "named")
    seen = await speaker.ask(Asked(model="named", tools=True, choice="named"), streamed=streamed)
    assert seen.calls == (("weather", {"city": "Bern"}),)
    assert seen.finish == speaker.finishes["tool_calls"]
    assert json.loads(asked_of(stack, "named").sampling_params.json_schema) == TOOLS["weather"]


async def test_one_of_the_allowed_tools_must_be_called(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    needs(speaker, "allowed")
    seen = await speaker.ask(Asked(model="must-now", tools=True, choice="allowed"), streamed=streamed)
    assert seen.calls == (("now", {}),)
    assert '"name": "weather"' not in prompt_of(stack, "must-now")


async def test_no_tool_may_be_called(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    needs(speaker, "none")
    seen = await speaker.ask(Asked(model="says", tools=True, choice="none"), streamed=streamed)
    assert (seen.text, seen.calls) == ("It is sunny.", ())
    assert 'weather"' not in prompt_of(stack, "says")


async def test_thinking_is_switched_off(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    seen = await speaker.ask(Asked(model="sunny", thinking=False), streamed=streamed)
    assert (seen.text, seen.reasoning) == ("Sunny.", None)
    assert prompt_of(stack, "sunny").endswith("<think>\n\n</think>\n\n")


async def test_a_schema_binds_the_engine(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    seen = await speaker.ask(Asked(model="json", schema=SCHEMA), streamed=streamed)
    assert json.loads(seen.text) == {"degrees": 21}
    assert json.loads(asked_of(stack, "json").sampling_params.json_schema) == SCHEMA


async def test_a_stop_string_ends_the_answer(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    seen = await speaker.ask(Asked(model="plain", stop=("zz", "wö")), streamed=streamed)
    assert (seen.text, seen.finish) == ("Hello, ", speaker.finishes["stop_sequence"])
    if speaker.finishes["stop_sequence"] != speaker.finishes["stop"]:
        assert seen.stop_sequence == "wö"


async def test_the_answer_is_cut_at_its_greatest_length(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    seen = await speaker.ask(Asked(model="plain", max_tokens=2, temperature=0.25), streamed=streamed)
    assert (seen.finish, seen.completion_tokens) == (speaker.finishes["length"], 2)
    params = asked_of(stack, "plain").sampling_params
    assert (params.max_tokens, params.temperature) == (2, 0.25)


async def test_tokens_are_counted_with_those_from_the_cache_and_of_reasoning(
    stack: Stack, speaker: Speaker, dialect: str, streamed: bool
) -> None:
    asked = Asked(model="calls", tools=True, system=f"Say it for {dialect}, {streamed}.")
    seen = [await speaker.ask(asked, streamed=streamed) for _ in range(2)]
    prompt = len(asked_of(stack, "calls").tokenized.input_ids)
    for one in seen:
        assert one.prompt_tokens == prompt
        assert one.completion_tokens == len(TOKENIZER.encode(CALLS, add_special_tokens=False).ids) + 1
        if one.reasoning_tokens is not None:
            assert 0 < one.reasoning_tokens < one.completion_tokens
    if seen[1].cached_tokens is not None:
        assert seen[1].cached_tokens == (prompt - 1) // 16 * 16


async def test_log_probabilities_come_for_each_token(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    needs(speaker, "logprobs")
    seen = await speaker.ask(Asked(model="plain", logprobs=2), streamed=streamed)
    assert seen.logprobs
    assert all(score <= 0 for score in seen.logprobs)
    assert len(seen.logprobs) in (seen.completion_tokens, seen.completion_tokens - 1)  # with or without the end
    assert asked_of(stack, "plain").sampling_params.logprobs >= 2


async def test_the_model_is_called_as_the_client_called_it_and_every_answer_has_its_id(
    stack: Stack, speaker: Speaker, streamed: bool
) -> None:
    seen: list[Seen] = [await speaker.ask(Asked(model="plain"), streamed=streamed) for _ in range(2)]
    assert {one.model for one in seen} == {"plain"}
    assert len({one.id for one in seen}) == 2 or "ids" in speaker.cannot


async def test_an_image_is_refused_by_a_model_that_takes_none(stack: Stack, speaker: Speaker, streamed: bool) -> None:
    before = len(asked_by(stack, "plain"))
    with pytest.raises(speaker.refused, match=r"(?i)image") as refused:
        await speaker.ask(Asked(model="plain", image=True), streamed=streamed)
    status = getattr(refused.value, "status_code", None) or getattr(refused.value, "code", None)
    assert status == 400
    assert len(asked_by(stack, "plain")) == before
