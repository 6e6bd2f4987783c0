"""Gemini through a real Envoy with the official SDK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
from google import genai
from google.genai import errors, types
from smg_grpc_proto.generated import vllm_engine_pb2
from stack import INSTANT, Stack, StartStack, eventually
from tokenizers import Tokenizer

from extproc.routing.worker import WorkerState
from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

POOL = {"chat_template": str(Path(__file__).parent / "data" / "tools.jinja")}
WEATHER = types.FunctionDeclaration(
    name="weather",
    description="The weather of a city.",
    parameters=types.Schema(
        type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)}, required=["city"]
    ),
)
NOW = types.FunctionDeclaration(name="now", parameters_json_schema={"type": "object", "properties": {}})
TOOLS: list[Any] = [types.Tool(function_declarations=[WEATHER, NOW])]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ASKED = "What is the weather in Zürich?"
THOUGHT = "The user asks for\nthe weather."
CALLS = (
    f"{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>'
)
NO_CALLS = types.AutomaticFunctionCallingConfig(disable=True)


def says(*texts: str, **spec: Any) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts, **spec)]


def sdk(stack: Stack, **options: Any) -> Any:
    """The asynchronous client."""
    http_options = types.HttpOptions(base_url=f"http://127.0.0.1:{stack.http_port}", timeout=60_000, **options)
    return genai.Client(api_key="key", http_options=http_options).aio


def asked(stack: Stack) -> vllm_engine_pb2.GenerateRequest:
    """What the engine was asked last."""
    return stack.engines[0].requests[-1]


def prompt(stack: Stack) -> str:
    tokenizer = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))
    return tokenizer.decode(list(asked(stack).tokenized.input_ids), skip_special_tokens=False)


async def streamed(client: Any, **request: Any) -> list[types.GenerateContentResponse]:
    return [chunk async for chunk in await client.models.generate_content_stream(model="simulated", **request)]


def text_of(chunks: list[types.GenerateContentResponse]) -> str:
    parts = [part for chunk in chunks for part in chunk.parts or ()]
    return "".join([part.text or "" for part in parts if not part.thought])


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("shows", [True, False])
async def test_thoughts_text_and_calls_come_and_go_back_with_their_results(
    start_stack: StartStack, streams: bool, shows: bool
) -> None:
    async with start_stack(specs=says(CALLS, "So.</think>It is sunny."), pool=POOL) as stack, sdk(stack) as client:
        config = types.GenerateContentConfig(
            tools=TOOLS,
            automatic_function_calling=NO_CALLS,
            thinking_config=types.ThinkingConfig(include_thoughts=shows),
        )
        chat = client.chats.create(model="simulated", config=config)

        async def send(message: Any) -> list[types.GenerateContentResponse]:
            if streams:
                return [chunk async for chunk in await chat.send_message_stream(message)]
            return [await chat.send_message(message)]

        chunks = await send(ASKED)
        parts = [part for chunk in chunks for part in chunk.parts or ()]
        thoughts = "".join([part.text or "" for part in parts if part.thought])
        assert thoughts == (THOUGHT if shows else "")
        assert text_of(chunks) == "Let me look."
        weather, now = [call for chunk in chunks for call in chunk.function_calls or ()]
        assert (weather.name, weather.args, now.name, now.args) == ("weather", {"city": "Zürich"}, "now", {})
        assert weather.id != now.id
        usage = chunks[-1].usage_metadata
        assert usage is not None
        assert usage.thoughts_token_count
        assert usage.total_token_count == (
            (usage.prompt_token_count or 0) + (usage.candidates_token_count or 0) + usage.thoughts_token_count
        )
        assert chunks[-1].candidates is not None
        assert chunks[-1].candidates[0].finish_reason is types.FinishReason.STOP
        assert chunks[-1].model_version == "simulated"
        results = [
            types.Part(function_response=types.FunctionResponse(id=now.id, name="now", response={"output": "12:00"})),
            types.Part.from_function_response(name="weather", response={"error": "no such city"}),
            types.Part(text="Never mind."),
        ]
        assert text_of(await send(results)) == "It is sunny."
        history = prompt(stack)
        assert f"<think>\n{THOUGHT}\n</think>\n\nLet me look.<tool_call>" in history
        assert '{"name": "weather", "arguments": {"city": "Zürich"}}' in history
        assert history.index("tool\n12:00") < history.index("tool\nError: no such city") < history.index("Never mind.")
        await stack.nothing_left()


async def test_the_sdk_calls_functions_by_itself(start_stack: StartStack) -> None:
    called: list[str] = []

    def weather(city: str) -> str:
        """The weather of a city."""
        called.append(city)
        return "sunny"

    call = '</think>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    async with start_stack(specs=says(call, "</think>It is sunny."), pool=POOL) as stack, sdk(stack) as client:
        config = types.GenerateContentConfig(tools=[weather])
        answer = await client.models.generate_content(model="simulated", contents=ASKED, config=config)
        assert (answer.text, called) == ("It is sunny.", ["Bern"])
        assert "sunny" in prompt(stack)


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_counts_are_those_of_the_prompt_and_tell_what_was_cached(start_stack: StartStack, version: str) -> None:
    async with start_stack(specs=says("One.", "Two.")) as stack, sdk(stack, api_version=version) as client:
        contents = "Be brief. " * 20
        counted = (await client.models.count_tokens(model="simulated", contents=contents)).total_tokens
        first = (await client.models.generate_content(model="simulated", contents=contents)).usage_metadata
        assert first is not None
        assert (first.prompt_token_count, first.cached_content_token_count) == (counted, None)
        last = (await streamed(client, contents=contents))[-1].usage_metadata
        assert last is not None
        assert last.cached_content_token_count == (counted - 1) // 16 * 16 > 0
        assert len(asked(stack).tokenized.input_ids) == counted


async def test_vertex_ais_paths_are_served(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Hi.")) as stack:
        options = types.HttpOptions(base_url=f"http://127.0.0.1:{stack.http_port}")
        async with genai.Client(vertexai=True, api_key="key", http_options=options).aio as client:
            answer = await client.models.generate_content(model="simulated", contents=ASKED)
            assert answer.text == "Hi."
            assert text_of(await streamed(client, contents=ASKED)) == "Hi."


async def test_a_stream_without_events_is_one_array(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One two three.")) as stack:
        body = {"contents": [{"parts": [{"text": "a"}]}], "generation_config": {"max_output_tokens": 50}}
        answer = await stack.http.post("/v1beta/models/simulated:streamGenerateContent?key=k", json=body)
        assert answer.headers["content-type"] == "application/json"
        chunks = list(map(types.GenerateContentResponse.model_validate, answer.json()))
        assert text_of(chunks) == "One two three."
        assert chunks[-1].usage_metadata is not None
        refused = await stack.http.post("/v1beta/models/none:streamGenerateContent?key=k", json=body)
        assert (refused.status_code, refused.json()[0]["error"]["status"]) == (404, "NOT_FOUND")


async def test_sampling_reaches_the_engine(start_stack: StartStack) -> None:
    async with start_stack(specs=says("One two three. Four five.")) as stack, sdk(stack) as client:
        config = types.GenerateContentConfig(
            system_instruction="Be brief.",
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            seed=3,
            max_output_tokens=100,
            presence_penalty=0.5,
            candidate_count=2,
            response_logprobs=True,
            logprobs=2,
            stop_sequences=["zzz", "e. Fo"],
            safety_settings=[
                types.SafetySetting.model_validate({"category": "HARM_CATEGORY_HATE_SPEECH", "threshold": "OFF"})
            ],
        )
        answer = await client.models.generate_content(model="simulated", contents=ASKED, config=config)
        params = asked(stack).sampling_params
        assert (params.temperature, params.top_k, params.n, params.max_tokens) == (0.5, 40, 2, 100)
        assert "Be brief." in prompt(stack)
        assert [candidate.content.parts[0].text for candidate in answer.candidates] == ["One two thre"] * 2
        logprobs = answer.candidates[1].logprobs_result
        assert logprobs.chosen_candidates[0].log_probability <= 0
        assert [len(top.candidates) for top in logprobs.top_candidates] == [2] * len(logprobs.chosen_candidates)
        short = types.GenerateContentConfig(max_output_tokens=2)
        answer = await client.models.generate_content(model="simulated", contents=ASKED, config=short)
        assert answer.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS
        assert answer.usage_metadata.candidates_token_count == 2


@pytest.mark.parametrize(
    ("allowed", "said"),
    [(["weather"], '{"city": "Bern"}'), (None, '[{"name": "weather", "parameters": {"city": "Bern"}}]')],
    ids=["one", "any"],
)
async def test_a_call_that_must_come_binds_the_engine(
    start_stack: StartStack, allowed: list[str] | None, said: str
) -> None:
    async with start_stack(specs=says(said), pool=POOL) as stack, sdk(stack) as client:
        calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=allowed)
        config = types.GenerateContentConfig(
            tools=TOOLS,
            tool_config=types.ToolConfig(function_calling_config=calling),
            automatic_function_calling=NO_CALLS,
        )
        answer = await client.models.generate_content(model="simulated", contents=ASKED, config=config)
        [call] = answer.function_calls
        assert (call.name, call.args) == ("weather", {"city": "Bern"})
        schema = json.loads(asked(stack).sampling_params.json_schema)
        assert schema == SCHEMA if allowed else schema["type"] == "array"


async def test_no_tool_is_offered_and_no_thinking_asked_for_where_the_client_says_so(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Sunny."), pool=POOL) as stack, sdk(stack) as client:
        calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.NONE)
        config = types.GenerateContentConfig(
            tools=TOOLS,
            tool_config=types.ToolConfig(function_calling_config=calling),
            thinking_config=types.ThinkingConfig(thinking_budget=0),
        )
        answer = await client.models.generate_content(model="simulated", contents=ASKED, config=config)
        assert answer.text == "Sunny."
        assert "weather of a city" not in prompt(stack)
        assert prompt(stack).endswith("<think>\n\n</think>\n\n")


class Answer(pydantic.BaseModel):
    degrees: int


async def test_structured_output_is_parsed_by_the_sdk(start_stack: StartStack) -> None:
    async with start_stack(specs=says('{"degrees": 21}')) as stack, sdk(stack) as client:
        for name, schema in (("response_schema", Answer), ("response_json_schema", Answer.model_json_schema())):
            config = types.GenerateContentConfig.model_validate(
                {"response_mime_type": "application/json", name: schema}
            )
            answer = await client.models.generate_content(model="simulated", contents=ASKED, config=config)
            assert json.loads(answer.text) == {"degrees": 21}
            bound = json.loads(asked(stack).sampling_params.json_schema)
            assert (bound["required"], bound["properties"]["degrees"]["type"]) == (["degrees"], "integer")
            if name == "response_schema":
                assert answer.parsed == Answer(degrees=21)


async def test_models_are_listed_for_the_sdk(start_stack: StartStack) -> None:
    async with start_stack() as stack, sdk(stack) as client:
        [model] = [model async for model in await client.models.list()]
        assert model.name == "models/simulated"
        assert (await client.models.get(model="simulated")).input_token_limit == model.input_token_limit
        with pytest.raises(errors.ClientError, match="none") as raised:
            await client.models.get(model="none")
        assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")


async def test_what_is_not_supported_is_refused_in_the_sdks_form(start_stack: StartStack) -> None:
    image = types.Part.from_bytes(data=b"abc", mime_type="image/png")
    async with start_stack(specs=says("x")) as stack, sdk(stack) as client:

        async def refused(status: str, contents: Any = ASKED, model: str = "simulated", **config: Any) -> str:
            with pytest.raises(errors.ClientError) as raised:
                await client.models.generate_content(model=model, contents=contents, config=config)
            assert raised.value.status == status
            return raised.value.message or ""

        assert "contents[0].parts[1].inlineData" in await refused("INVALID_ARGUMENT", ["a", image])
        assert "tools" in await refused("INVALID_ARGUMENT", tools=TOOLS, automatic_function_calling=NO_CALLS)
        assert "googleSearch" in await refused(
            "INVALID_ARGUMENT", tools=[types.Tool(google_search=types.GoogleSearch())]
        )
        assert "context length" in await refused("INVALID_ARGUMENT", "word " * 200_000)
        assert "none" in await refused("NOT_FOUND", model="none")


async def test_a_worker_that_fails_is_an_error_of_the_right_class(start_stack: StartStack) -> None:
    spec = EngineSpec(**INSTANT, faults=Faults(refuse_status=8, details="full"))
    async with start_stack(specs=[spec]) as stack, sdk(stack) as client:
        with pytest.raises(errors.ClientError) as raised:
            await client.models.generate_content(model="simulated", contents=ASKED)
        assert (raised.value.code, raised.value.status) == (429, "RESOURCE_EXHAUSTED")


async def test_no_worker_at_all_is_told_as_unavailable(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT)]) as stack, sdk(stack) as client:
        await stack.engines[0].stop()
        assert stack.processor.fleet is not None
        [worker] = stack.processor.fleet.workers
        await eventually(lambda: worker.state is not WorkerState.READY, "the worker away")
        with pytest.raises(errors.ServerError) as raised:
            await streamed(client, contents=ASKED)
        assert (raised.value.code, raised.value.status) == (503, "UNAVAILABLE")


async def test_an_answer_that_breaks_off_raises_in_the_sdk(start_stack: StartStack) -> None:
    spec = EngineSpec(
        prefill_tokens_per_s=0.0,
        decode_step_s=0.01,
        answers=Answers.NATURAL,
        faults=Faults(break_kind=Break.ERROR, break_after=3),
    )
    async with start_stack(specs=[spec]) as stack, sdk(stack) as client:
        with pytest.raises(errors.APIError, match="injected fault"):
            await streamed(client, contents=ASKED)
        await stack.nothing_left()
