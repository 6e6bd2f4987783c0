"""Chat completions through a real Envoy with the official SDK in strict mode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from stack import INSTANT, Stack, StartStack
from tokenizers import Tokenizer

from extproc.simulator.spec import OWN_MODEL, Answers, EngineSpec

pytestmark = pytest.mark.envoy

HELLO = [{"role": "user", "content": "Say hello to the world."}]
ECHO = "Say hello to the world."
TRICKY = "Grüße 👩‍👩‍👧‍👦, 你好，世界! \n\t“quotes” \\ / \u2028 end"


def decode(ids: Sequence[int]) -> str:
    """By the reference library."""
    return Tokenizer.from_file(str(OWN_MODEL / "tokenizer.json")).decode(list(ids), skip_special_tokens=False)


async def chunks_of(stack: Stack, **request: Any) -> list[ChatCompletionChunk]:
    stream = await stack.client().chat.completions.create(
        **{"model": "simulated", "messages": HELLO, "stream": True, **request}
    )
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk], choice: int = 0) -> str:
    return "".join(delta.delta.content or "" for chunk in chunks for delta in chunk.choices if delta.index == choice)


async def test_an_answer_comes_whole_with_its_counts(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        client = stack.client()
        first = await client.chat.completions.create(model="simulated", messages=HELLO)
        second = await client.chat.completions.create(model="simulated", messages=HELLO)
        third = await client.chat.completions.create(model="simulated", messages=HELLO)
        assert first.choices[0].message.content == ECHO
        assert first.choices[0].finish_reason == "stop"
        assert first.model == "simulated"
        assert first.id.startswith("chatcmpl-")
        assert first.id != second.id
        usage = third.usage
        assert usage is not None
        recorded = stack.engines[0].requests[-1]
        assert usage.prompt_tokens == len(recorded.tokenized.input_ids)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens_details is not None
        # Round robin brought the third to the first's worker, which has the prompt's whole blocks.
        assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // 16 * 16 > 0
        assert first.usage is not None
        assert first.usage.prompt_tokens_details is not None
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        await stack.nothing_left()


@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_stream_keeps_every_rule_of_openais_chunks(start_stack: StartStack, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    async with start_stack(specs=[EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=(TRICKY,))]) as stack:
        chunks = await chunks_of(stack, **options)
        assert text_of(chunks) == TRICKY
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        opener = chunks[0].choices[0].delta
        assert (opener.role, opener.content, opener.refusal) == ("assistant", "", None)
        assert [chunk.choices[0].delta.role for chunk in chunks[1:] if chunk.choices] == [None] * (
            len(chunks) - (2 if include_usage else 1)
        )
        finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
        assert finishes == ["stop"]
        if include_usage:
            assert chunks[-1].choices == []
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens > 10
            assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])
        else:
            assert all("usage" not in chunk.model_fields_set for chunk in chunks)
        await stack.nothing_left()


async def test_the_raw_stream_ends_with_done_and_carries_no_trace_of_grpc(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        for stream in (True, False):
            answer = await stack.http.post(
                "/v1/chat/completions",
                json={"model": "simulated", "messages": HELLO, "stream": stream},
                headers={"x-request-id": "my-id-1"},
            )
            assert answer.status_code == 200
            assert answer.headers["content-type"] == ("text/event-stream" if stream else "application/json")
            assert answer.headers["x-request-id"] == "my-id-1"
            assert not [name for name in answer.headers if "grpc" in name or name.startswith("x-gateway")]
        lines = (
            await stack.http.post(
                "/v1/chat/completions", json={"model": "simulated", "messages": HELLO, "stream": True}
            )
        ).text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        assert all(line.startswith("data: {") for line in lines[:-2])


async def test_every_sampling_field_reaches_the_engine(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT)]) as stack:
        await stack.client().chat.completions.create(
            model="simulated",
            messages=[{"role": "system", "content": "Be brief."}, *HELLO],
            temperature=0.5,
            top_p=0.9,
            n=2,
            seed=7,
            max_completion_tokens=12,
            frequency_penalty=0.25,
            presence_penalty=-0.25,
            stop=["never", "ever"],
            logit_bias={"5": -100},
            logprobs=True,
            top_logprobs=3,
            user="someone",
            extra_body={"top_k": 4, "min_p": 0.125, "repetition_penalty": 1.5, "min_tokens": 2, "stop_token_ids": [1]},
        )
        params = stack.engines[0].requests[-1].sampling_params
        assert params.temperature == 0.5
        assert round(params.top_p, 6) == 0.9
        assert (params.n, params.seed, params.max_tokens, params.logprobs) == (2, 7, 12, 4)
        assert (params.frequency_penalty, params.presence_penalty) == (0.25, -0.25)
        assert (params.top_k, params.min_p, params.repetition_penalty, params.min_tokens) == (4, 0.125, 1.5, 2)
        assert (list(params.stop), list(params.stop_token_ids)) == (["never", "ever"], [1])
        assert dict(params.logit_bias) == {5: -100.0}


async def test_a_top_k_that_leaves_every_token_is_none(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT)]) as stack:
        for top_k in (500, 10**9):
            body = {"model": "simulated", "messages": HELLO, "top_k": top_k}
            assert (await stack.http.post("/v1/chat/completions", json=body)).status_code == 200
        assert [request.sampling_params.top_k for request in stack.engines[0].requests] == [500, 0]


async def test_an_engines_refusal_is_told_in_its_words(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        with pytest.raises(openai.BadRequestError) as raised:
            await stack.client().chat.completions.create(model="simulated", messages=HELLO, n=2, temperature=0)
        assert "n must be 1 when using greedy sampling" in raised.value.message


@pytest.mark.parametrize("stream", [True, False])
async def test_several_choices_come_apart(start_stack: StartStack, stream: bool) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT)]) as stack:
        if stream:
            chunks = await chunks_of(stack, n=3, stream_options={"include_usage": True})
            assert [c.choices[0].index for c in chunks[:3]] == [0, 1, 2]
            assert [text_of(chunks, i) for i in range(3)] == [ECHO] * 3
            usage = chunks[-1].usage
        else:
            answer = await stack.client().chat.completions.create(model="simulated", messages=HELLO, n=3)
            assert [(c.index, c.message.content, c.finish_reason) for c in answer.choices] == [
                (i, ECHO, "stop") for i in range(3)
            ]
            usage = answer.usage
        assert usage is not None
        assert usage.completion_tokens % 3 == 0
        await stack.nothing_left()


@pytest.mark.parametrize("stream", [True, False])
async def test_log_probabilities_spell_the_text(start_stack: StartStack, stream: bool) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=(TRICKY,))]) as stack:
        if stream:
            chunks = await chunks_of(stack, logprobs=True, top_logprobs=2)
            entries = [e for c in chunks for ch in c.choices if ch.logprobs for e in ch.logprobs.content or []]
        else:
            answer = await stack.client().chat.completions.create(
                model="simulated", messages=HELLO, logprobs=True, top_logprobs=2
            )
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            entries = logprobs.content or []
        assert b"".join(bytes(e.bytes or []) for e in entries).decode() == TRICKY
        assert all(e.logprob <= 0 and len(e.top_logprobs) <= 2 for e in entries)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_length_limit_is_told(start_stack: StartStack, stream: bool) -> None:
    async with start_stack() as stack:
        if stream:
            chunks = await chunks_of(stack, max_tokens=2)
            finish = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
        else:
            answer = await stack.client().chat.completions.create(model="simulated", messages=HELLO, max_tokens=2)
            finish = [answer.choices[0].finish_reason]
        assert finish == ["length"]


@pytest.mark.parametrize("size", [1_000, 61_000, 63_000, 1_000_000, 5_000_000, 20_000_000])
async def test_bodies_of_any_size_arrive_whole(start_stack: StartStack, size: int) -> None:
    words = "Several words of an ordinary text, number {}. "
    text = "".join(words.format(i) for i in range(size // len(words) + 1))[:size]
    async with start_stack(specs=[EngineSpec(**INSTANT, context_tokens=30_000_000, kv_cache_tokens=0)]) as stack:
        answer = await stack.client().chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": text}], max_tokens=3
        )
        (request,) = stack.engines[0].requests
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(request.tokenized.input_ids)
        assert decode(request.tokenized.input_ids).count(text) == 1
        await stack.nothing_left()


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_of_any_size_arrive_whole(start_stack: StartStack, stream: bool) -> None:
    text = "".join(f"Sentence number {i} of a long answer. " for i in range(6000))
    spec = EngineSpec(**INSTANT, context_tokens=1_000_000, answers=Answers.SCRIPT, texts=(text,), tokens_per_chunk=50)
    async with start_stack(specs=[spec]) as stack:
        if stream:
            assert text_of(await chunks_of(stack)) == text
        else:
            answer = await stack.client().chat.completions.create(model="simulated", messages=HELLO)
            assert answer.choices[0].message.content == text
        await stack.nothing_left()


async def test_a_body_over_the_limit_is_refused_in_the_clients_dialect(start_stack: StartStack) -> None:
    async with start_stack(settings={"limits": {"body_bytes": 100_000}}) as stack:
        messages: list[Any] = [{"role": "user", "content": "x" * 200_000}]
        with pytest.raises(openai.APIStatusError) as raised:
            await stack.client().chat.completions.create(model="simulated", messages=messages)
        assert raised.value.status_code == 413
        assert raised.value.code == "request_too_large"

        async def pieces() -> Any:
            for _ in range(200):
                yield b" " * 1000

        answer = await stack.http.post("/v1/chat/completions", content=pieces())
        assert answer.status_code == 413
        await stack.nothing_left()


@pytest.mark.parametrize(
    ("request_body", "status", "code", "param"),
    [
        ({"model": "simulated"}, 400, "missing_required_parameter", "messages"),
        ({"model": "nope", "messages": HELLO}, 404, "model_not_found", "model"),
        ({"model": "simulated", "messages": HELLO, "temperature": 3}, 400, "decimal_above_max_value", "temperature"),
        ({"model": "simulated", "messages": HELLO, "tools": [{"x": 1}]}, 400, "unknown_parameter", "tools[0].x"),
        ({"model": "simulated", "messages": HELLO, "nonsense": 1}, 400, "unknown_parameter", "nonsense"),
        ({"model": "simulated", "messages": HELLO, "logit_bias": {"9999999": 1}}, 400, "invalid_value", "logit_bias"),
        (
            {"model": "simulated", "messages": HELLO, "stop_token_ids": [9999999]},
            400,
            "invalid_value",
            "stop_token_ids",
        ),
    ],
)
async def test_bad_requests_are_refused_by_field(
    start_stack: StartStack, request_body: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with start_stack() as stack:
        answer = await stack.http.post("/v1/chat/completions", json=request_body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
        assert error["type"] == "invalid_request_error"
        assert answer.headers["content-type"] == "application/json"
        await stack.nothing_left()


async def test_a_prompt_over_the_models_context_is_refused_with_openais_code(start_stack: StartStack) -> None:
    async with start_stack(specs=[EngineSpec(**INSTANT, context_tokens=64)]) as stack:
        with pytest.raises(openai.BadRequestError) as raised:
            await stack.client().chat.completions.create(
                model="simulated", messages=[{"role": "user", "content": "word " * 200}]
            )
        assert raised.value.code == "context_length_exceeded"
        # One that is hopeless by its size is refused before it is tokenized.
        messages: list[Any] = [{"role": "user", "content": "🙂" * 1_000_000}]
        with pytest.raises(openai.BadRequestError, match="1000000 characters") as raised:
            await stack.client().chat.completions.create(model="simulated", messages=messages)
        assert raised.value.code == "context_length_exceeded"
        assert not stack.engines[0].requests


async def test_models_are_listed_and_looked_up(start_stack: StartStack) -> None:
    pool = {"name": "main", "models": [{"name": "org/simulated", "aliases": ["short"]}]}
    async with start_stack(specs=[EngineSpec(**INSTANT, context_tokens=4321)], pool=pool) as stack:
        client = stack.client()
        listed = {model.id: model async for model in client.models.list()}
        assert set(listed) == {"org/simulated", "short"}
        assert listed["short"].model_extra == {"max_model_len": 4321}
        assert (await client.models.retrieve("org/simulated")).id == "org/simulated"
        with pytest.raises(openai.NotFoundError) as raised:
            await client.models.retrieve("other")
        assert raised.value.code == "model_not_found"
        answer = await client.chat.completions.create(model="short", messages=HELLO)
        assert answer.model == "short"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_url"),
        ("POST", "/v1/chat/completionss", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_unknown_urls_and_methods_are_told(
    start_stack: StartStack, method: str, path: str, status: int, code: str
) -> None:
    async with start_stack() as stack:
        answer = await stack.http.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert ("allow" in answer.headers) == (status == 405)


async def test_requests_are_spread_and_the_decision_is_told_to_those_who_may_ask(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        seen = []
        for _ in range(4):
            answer = await stack.http.post(
                "/v1/chat/completions",
                json={"model": "simulated", "messages": HELLO},
                headers={"x-gateway-debug": "1"},
            )
            decision = json.loads(answer.headers["x-gateway-decision"])
            assert decision["policy"] == "round_robin"
            assert decision["pool"] == "main"
            assert decision["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
            seen.append(decision["address"])
        assert seen[:2] == seen[2:]
        assert set(seen) == {engine.address for engine in stack.engines}
        assert [len(engine.requests) for engine in stack.engines] == [2, 2]


async def test_the_decision_is_not_told_to_others(start_stack: StartStack) -> None:
    async with start_stack(settings={"debug": {"clients": ["10.0.0.0/8"]}}) as stack:
        answer = await stack.http.post(
            "/v1/chat/completions",
            json={"model": "simulated", "messages": HELLO},
            headers={"x-gateway-debug": "1"},
        )
        assert answer.status_code == 200
        assert "x-gateway-decision" not in answer.headers


async def test_many_requests_at_once_get_each_their_own_answer(start_stack: StartStack) -> None:
    async with start_stack() as stack:
        client = stack.client()

        async def one(number: int) -> None:
            content = f"This is request number {number}."
            messages: list[Any] = [{"role": "user", "content": content}]
            if number % 2:
                answer = await client.chat.completions.create(model="simulated", messages=messages)
                assert answer.choices[0].message.content == content
            else:
                stream = await client.chat.completions.create(model="simulated", messages=messages, stream=True)
                assert text_of([chunk async for chunk in stream]) == content

        await asyncio.gather(*(one(number) for number in range(200)))
        await stack.nothing_left()


async def test_the_reference_transport_serves_the_same(start_stack: StartStack) -> None:
    async with start_stack(transport="grpcio") as stack:
        answer = await stack.client().chat.completions.create(model="simulated", messages=HELLO)
        assert answer.choices[0].message.content == ECHO
        assert text_of(await chunks_of(stack)) == ECHO
        await stack.nothing_left()
