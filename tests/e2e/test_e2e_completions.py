"""Completions, embeddings and lists of models through a real Envoy with the official SDKs."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import anthropic
import ollama
import openai
import pytest
from google import genai
from stack import INSTANT, Stack, StartStack, eventually
from tokenizers import Tokenizer

from extproc.simulator.embedding import vector
from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

TOKENIZER = Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json"))


def says(*texts: str, **spec: Any) -> list[EngineSpec]:
    return [EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=texts, **spec)]


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


def lenient(stack: Stack) -> openai.AsyncOpenAI:
    """What the SDK's strict types do not know of OpenAI's own answers: that a chunk's finish reason is null in all but
    the last, and that vectors come as base64, for which the SDK asks by itself."""
    client = openai.AsyncOpenAI(base_url=stack.base_url, api_key="key", max_retries=0)
    stack.clients.append(client)
    return client


async def streamed(stack: Stack, **request: Any) -> tuple[dict[int, str], dict[int, str | None], Any]:
    """Of each choice its text and finish reason, and the usage."""
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    usage = None
    stream = await lenient(stack).completions.create(model="simulated", stream=True, **request)
    async for chunk in stream:
        assert chunk.object == "text_completion"
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


async def test_a_text_is_continued_as_it_stands(start_stack: StartStack) -> None:
    async with start_stack(specs=says(" over the lazy dog.")) as stack:
        answer = await stack.client().completions.create(model="simulated", prompt="The quick brown fox", max_tokens=50)
        (choice,) = answer.choices
        assert (choice.text, choice.finish_reason, choice.logprobs) == (" over the lazy dog.", "stop", None)
        asked = stack.engines[0].requests[-1]
        assert list(asked.tokenized.input_ids) == ids("The quick brown fox")
        assert asked.sampling_params.max_tokens == 50
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(asked.tokenized.input_ids)

        texts, reasons, usage = await streamed(
            stack, prompt="The quick brown fox", max_tokens=50, stream_options={"include_usage": True}
        )
        assert (texts, reasons) == ({0: choice.text}, {0: "stop"})
        assert usage.completion_tokens == answer.usage.completion_tokens
        await stack.nothing_left()


async def test_without_a_limit_there_are_sixteen_tokens(start_stack: StartStack) -> None:
    async with start_stack(specs=says("word " * 100)) as stack:
        answer = await stack.client().completions.create(model="simulated", prompt="Once")
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("in_stream", [True, False])
async def test_several_prompts_are_choices_counted_through(start_stack: StartStack, in_stream: bool) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT, answers=Answers.ECHO) for _ in range(2)]) as stack:
        prompts = ["one two three", "four five", "six"]
        request: dict[str, Any] = {"prompt": prompts, "n": 2, "echo": True, "max_tokens": 40}
        if in_stream:
            texts, reasons, usage = await streamed(stack, **request, stream_options={"include_usage": True})
        else:
            answer = await stack.client().completions.create(model="simulated", **request)
            texts = {choice.index: choice.text for choice in answer.choices}
            reasons = {choice.index: choice.finish_reason for choice in answer.choices}
            usage = answer.usage
        assert sorted(texts) == [0, 1, 2, 3, 4, 5]
        for index, text in texts.items():
            assert text.startswith(prompts[index // 2])
        assert set(reasons.values()) == {"stop"}
        assert usage.prompt_tokens == sum(len(ids(prompt)) for prompt in prompts)
        assert [len(engine.requests) for engine in stack.engines] != [3, 0], "each prompt has its own worker"
        assert sum(len(engine.requests) for engine in stack.engines) == 3
        await stack.nothing_left()


async def test_token_ids_go_to_the_engine_as_they_are(start_stack: StartStack) -> None:
    async with start_stack(specs=says("!")) as stack:
        client = stack.client()
        answer = await client.completions.create(model="simulated", prompt=ids("Hello there"), echo=True)
        assert answer.choices[0].text == "Hello there!"
        assert list(stack.engines[0].requests[-1].tokenized.input_ids) == ids("Hello there")
        answer = await client.completions.create(model="simulated", prompt=[ids("Hello"), ids("Good day")], echo=True)
        assert [choice.text for choice in answer.choices] == ["Hello!", "Good day!"]
        with pytest.raises(openai.BadRequestError, match="no token 99999999") as caught:
            await client.completions.create(model="simulated", prompt=[99_999_999])
        assert caught.value.param == "prompt"


async def test_log_probabilities_are_lists_beside_the_text(start_stack: StartStack) -> None:
    async with start_stack(specs=says("Grüße aus Zürich")) as stack:
        client = stack.client()
        request: dict[str, Any] = {"model": "simulated", "prompt": "Say", "logprobs": 2, "max_tokens": 99}
        answer = await client.completions.create(**request)
        (choice,) = answer.choices
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.tokens
        assert logprobs.token_logprobs
        assert logprobs.top_logprobs
        assert logprobs.text_offset
        assert answer.usage is not None
        for token, value, top, offset in zip(
            logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset, strict=True
        ):
            assert top[token] == value
            if not token.startswith("bytes:"):
                assert choice.text[offset : offset + len(token)] == token
        found: list[str] = []
        async for chunk in await lenient(stack).completions.create(**request, stream=True):
            for each in chunk.choices:
                if each.logprobs and each.logprobs.tokens:
                    found += each.logprobs.tokens
        assert found == logprobs.tokens


async def test_the_likeliest_of_several_is_given(start_stack: StartStack) -> None:
    async with start_stack(specs=says("a b c")) as stack:
        client = stack.client()
        answer = await client.completions.create(model="simulated", prompt="x", n=2, best_of=4, max_tokens=20)
        assert [choice.index for choice in answer.choices] == [0, 1]
        assert all(choice.logprobs is None for choice in answer.choices)
        assert stack.engines[0].requests[-1].sampling_params.n == 4


async def test_what_fails_for_one_prompt_fails_for_all(start_stack: StartStack) -> None:
    faults = Faults(refuse_status=8, details="full", times=100)
    async with start_stack(specs=[EngineSpec(**INSTANT, faults=faults)]) as stack:
        with pytest.raises(openai.RateLimitError):
            await stack.client().completions.create(model="simulated", prompt=["a", "b"])
        await stack.nothing_left()


async def test_a_stream_that_breaks_is_an_error(start_stack: StartStack) -> None:
    async with start_stack(specs=says("a b c d e f g", faults=Faults(break_kind=Break.RESET, break_after=2))) as stack:
        with pytest.raises(openai.APIError):
            await streamed(stack, prompt="a", max_tokens=99)
        stack.engines[0].faults = Faults(break_kind=Break.RESET)
        with pytest.raises(openai.APIStatusError):
            await stack.client().completions.create(model="simulated", prompt=["a", "b"], max_tokens=99)
        await stack.nothing_left()


def embedder(**spec: Any) -> EngineSpec:
    return EngineSpec(**INSTANT, embedding_dimensions=8, **spec)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
async def test_texts_become_vectors_each_by_one_call(start_stack: StartStack, encoding: Any) -> None:
    async with start_stack(specs=[embedder(), embedder()]) as stack:
        texts = [f"text number {number}" for number in range(50)]
        options = {} if encoding is None else {"encoding_format": encoding}
        client = lenient(stack) if encoding != "float" else stack.client()
        answer = await client.embeddings.create(model="simulated", input=texts, **options)
        assert [each.index for each in answer.data] == list(range(50))
        for text, each in zip(texts, answer.data, strict=True):
            values = (
                list(struct.unpack("<8f", base64.b64decode(each.embedding)))
                if isinstance(each.embedding, str)
                else each.embedding
            )
            assert values == pytest.approx(vector(ids(text), 8), abs=1e-6)
        assert answer.usage.prompt_tokens == sum(len(ids(text)) for text in texts)
        assert [len(engine.embed_requests) for engine in stack.engines] == [25, 25]
        await stack.nothing_left()


async def test_vectors_are_shortened_to_the_wanted_length(start_stack: StartStack) -> None:
    async with start_stack(specs=[embedder()]) as stack:
        client = lenient(stack)
        answer = await client.embeddings.create(model="simulated", input="a text", dimensions=3)
        whole = vector(ids("a text"), 8)[:3]
        length = sum(value * value for value in whole) ** 0.5
        assert answer.data[0].embedding == pytest.approx([value / length for value in whole], abs=1e-6)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="simulated", input="a text", dimensions=9)
        assert caught.value.param == "dimensions"


async def test_a_model_without_embeddings_refuses(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        with pytest.raises(openai.BadRequestError, match="does not support pooling"):
            await stack.client().embeddings.create(model="simulated", input=["a", "b"])
        with pytest.raises(openai.NotFoundError):
            await stack.client().embeddings.create(model="other", input="a")
        await stack.nothing_left()


async def test_googles_sdk_gets_the_vectors_of_a_batch(start_stack: StartStack) -> None:
    async with start_stack(specs=[embedder()]) as stack:
        options = genai.types.HttpOptions(base_url=stack.base_url.removesuffix("/v1"))
        client = genai.Client(api_key="key", http_options=options)
        answer = await client.aio.models.embed_content(
            model="simulated", contents=["one text", "another"], config={"task_type": "RETRIEVAL_QUERY"}
        )
        assert answer.embeddings is not None
        asked = {"content": {"parts": [{"text": "a"}]}, "taskType": "RETRIEVAL_QUERY", "title": "t"}
        path = "/v1beta/models/simulated:embedContent"
        told = await stack.http.post(path, json=asked, headers={"x-gateway-debug": "1"})
        assert [loss["field"] for loss in json.loads(told.headers["x-gateway-losses"])] == ["taskType", "title"]
        assert "x-gateway-losses" not in (await stack.http.post(path, json=asked)).headers
        for text, each in zip(["one text", "another"], answer.embeddings, strict=True):
            assert each.values == pytest.approx(vector(ids(text), 8), abs=1e-6)
        body = {"content": {"parts": [{"text": "one "}, {"text": "text"}]}, "output_dimensionality": 4}
        one = await stack.http.post("/v1beta/models/simulated:embedContent", json=body)
        assert len(one.json()["embedding"]["values"]) == 4
        refused = await stack.http.post("/v1beta/models/simulated:embedContent", json={})
        assert refused.status_code == 400
        assert refused.json()["error"]["status"] == "INVALID_ARGUMENT"


async def test_ollamas_sdk_gets_vectors_in_both_ways(start_stack: StartStack) -> None:
    async with start_stack(specs=[embedder(context_tokens=64)]) as stack:
        client = ollama.AsyncClient(host=stack.base_url.removesuffix("/v1"))
        answer = await client.embed(model="simulated", input=["one text", "another"])
        for text, each in zip(["one text", "another"], answer.embeddings, strict=True):
            assert list(each) == pytest.approx(vector(ids(text), 8), abs=1e-6)
        assert answer.prompt_eval_count == len(ids("one text")) + len(ids("another"))
        one = await client.embeddings(model="simulated", prompt="one text")
        assert list(one.embedding) == pytest.approx(vector(ids("one text"), 8), abs=1e-6)
        long = "word " * 200
        cut = await client.embed(model="simulated", input=long)
        assert list(cut.embeddings[0]) == pytest.approx(vector(ids(long)[:64], 8), abs=1e-6)
        with pytest.raises(ollama.ResponseError) as caught:
            await client.embed(model="simulated", input=long, truncate=False)
        assert caught.value.status_code == 400


async def test_calls_of_our_own_find_another_worker_where_one_has_died(start_stack: StartStack) -> None:
    health = {"health": {"interval_s": 60.0, "timeout_s": 2.0}}
    async with start_stack(specs=[embedder(), embedder()], settings=health) as stack:
        await stack.engines[0].stop()
        texts = [f"text {number}" for number in range(10)]
        answer = await lenient(stack).embeddings.create(model="simulated", input=texts)
        assert len(answer.data) == 10
        assert len(stack.engines[1].embed_requests) == 10


async def test_a_client_that_leaves_ends_the_calls_that_we_made_for_it(start_stack: StartStack) -> None:
    slow = EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.2, answers=Answers.SCRIPT, texts=("word " * 200,))
    async with start_stack(specs=[slow]) as stack:
        body = {"model": "simulated", "prompt": ["a", "b", "c"], "max_tokens": 200}
        request = asyncio.ensure_future(stack.http.post("/v1/completions", json=body))
        await eventually(lambda: stack.running() == 3, "all prompts at the engine")
        request.cancel()
        await stack.nothing_left()


async def test_every_dialect_lists_the_models_in_its_own_form(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        base_url = stack.base_url.removesuffix("/v1")
        openai_models = [each.id async for each in stack.client().models.list()]
        assert (await stack.client().models.retrieve("simulated")).id == "simulated"
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="key", max_retries=0) as client:
            anthropic_models = [each.id async for each in client.models.list()]
            assert (await client.models.retrieve("simulated")).type == "model"
            with pytest.raises(anthropic.NotFoundError):
                await client.models.retrieve("other")
        google = genai.Client(api_key="key", http_options=genai.types.HttpOptions(base_url=base_url))
        google_models = [each.name async for each in await google.aio.models.list()]
        assert (await google.aio.models.get(model="simulated")).name == "models/simulated"
        lines = ollama.AsyncClient(host=base_url)
        ollama_models = [each.model for each in (await lines.list()).models]
        assert (await lines.show("simulated")).details is not None
        assert openai_models == anthropic_models == ollama_models == ["simulated"]
        assert google_models == ["models/simulated"]
