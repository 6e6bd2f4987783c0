"""Chat completions from real engines, through a real Envoy and the processor, with the official SDK in strict mode."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from asking import BOTH, WITHOUT_END, ask, ask_all, model_tokens, prompt_ids, request_of, tokens_of
from conftest import CONVERSATIONS
from e2e.stack import Stack, StartStack, eventually
from real_control import abort, requests_at_work
from real_engine import RealEngine

from extproc.cli.discover import discover
from extproc.config.address import parse_worker

pytestmark = pytest.mark.engines


async def at_rest(stack: Stack, engine: RealEngine, within_s: float = 5.0) -> None:
    """Neither the engine nor the processor works on anything."""

    async def idle() -> bool:
        return await requests_at_work(engine) == 0

    await eventually(idle, "the engine at rest", within_s)
    await stack.nothing_left()


async def test_everything_about_the_model_is_learned_from_the_worker(
    engine: RealEngine, start_gateway: StartStack
) -> None:
    (found,) = await discover([parse_worker(engine.address)], wait_s=30.0)
    kind = engine.kind
    assert (found.engine, found.context_tokens) == (kind.protocol, kind.context_tokens)
    async with start_gateway() as stack:
        (model,) = [model async for model in stack.client().models.list()]
        assert model.model_extra == {"max_model_len": kind.context_tokens}


async def test_prompts_are_tokenized_as_transformers_does(
    start_gateway: StartStack, reference_ids: list[list[int]]
) -> None:
    async with start_gateway() as stack:
        for messages, ids in zip(CONVERSATIONS, reference_ids, strict=True):
            assert await prompt_ids(stack, messages) == ids
            answer = await ask(stack, stream=False, messages=messages, max_tokens=1)
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == len(ids)


async def test_a_stream_says_what_the_whole_answer_says(engine: RealEngine, start_gateway: StartStack) -> None:
    async with start_gateway() as stack:
        await ask(stack, stream=False)  # from now on the prompt is cached alike for both
        whole = await ask(stack, stream=False, max_tokens=60)
        streamed = await ask(stack, stream=True, max_tokens=60)
        assert whole.text
        assert (streamed.text, streamed.finish, streamed.usage) == (whole.text, whole.finish, whole.usage)
        await at_rest(stack, engine)


@BOTH
async def test_a_repeated_prompt_is_told_as_cached(engine: RealEngine, start_gateway: StartStack, stream: bool) -> None:
    async with start_gateway() as stack:
        messages = [
            {"role": "user", "content": f"A text that nobody sent before ({stream}). " + "Some more words. " * 40}
        ]
        first = await ask(stack, stream=stream, messages=messages, max_tokens=4)
        second = await ask(stack, stream=stream, messages=messages, max_tokens=4)
        assert second.usage is not None
        block = engine.kind.block_tokens
        assert first.cached < 64  # the template's beginning at most
        assert second.cached == ((second.usage.prompt_tokens - 1) // block * block if block else 0)


@BOTH
async def test_choices_come_apart(engine: RealEngine, start_gateway: StartStack, stream: bool) -> None:
    wanted = {"n": 2, "temperature": 1.5, "seed": 3, "max_tokens": 12, "extra_body": WITHOUT_END}
    async with start_gateway() as stack:
        if engine.kind.protocol == "mlx":
            with pytest.raises(openai.BadRequestError) as raised:
                await ask_all(stack, stream=stream, **wanted)
            assert (raised.value.code, raised.value.param) == ("unsupported_parameter", "n")
            return
        one, other = await ask_all(stack, stream=stream, **wanted)
        assert one.text
        assert other.text
        assert one.text != other.text
        assert (one.finish, other.finish, one.tokens) == ("length", "length", 24)
        await at_rest(stack, engine)


@BOTH
async def test_text_ends_before_a_stop_string_and_so_does_the_engines_work(
    engine: RealEngine, start_gateway: StartStack, stream: bool
) -> None:
    async with start_gateway() as stack:
        await ask(stack, stream=stream)
        full = await ask(stack, stream=stream, max_tokens=40)
        at = len(full.text) // 2
        for length in (1, 3, 9):
            stop = full.text[at : at + length]
            begin = full.text.find(stop)
            answer = await ask(stack, stream=stream, max_tokens=1000, stop=["no such text", stop])
            assert (answer.text, answer.finish) == (full.text[:begin], "stop")
            assert answer.tokens <= full.tokens
            await at_rest(stack, engine)
            kept = await ask(
                stack, stream=stream, stop=stop, max_tokens=40, extra_body={"include_stop_str_in_output": True}
            )
            assert (kept.text, kept.finish) == (full.text[:begin] + stop, "stop")


@BOTH
async def test_a_stop_token_ends_the_text_before_it(
    engine: RealEngine, start_gateway: StartStack, stream: bool
) -> None:
    async with start_gateway() as stack:
        (token,) = tokens_of(stack, b" yes")
        bias = {"logit_bias": {str(token): 100}}
        assert (await ask(stack, stream=stream, max_tokens=5, **bias)).text == " yes" * 5
        answer = await ask(stack, stream=stream, max_tokens=5, extra_body={"stop_token_ids": [token]}, **bias)
        assert (answer.text, answer.finish, answer.tokens) == ("", "stop", 1)


@BOTH
async def test_the_models_own_end_is_a_stop_without_text(
    engine: RealEngine, start_gateway: StartStack, stream: bool
) -> None:
    async with start_gateway() as stack:
        (end,) = model_tokens(stack).eos_ids
        answer = await ask(stack, stream=stream, logit_bias={str(end): 100})
        assert (answer.text, answer.finish, answer.tokens) == ("", "stop", 1)


async def test_a_bias_keeps_a_token_away(start_gateway: StartStack) -> None:
    async with start_gateway() as stack:
        free = await ask(stack, stream=False, logprobs=True, max_tokens=1)
        first = bytes(free.logprobs[0].bytes or [])
        banned = [str(token) for token in tokens_of(stack, first)]
        kept_away = await ask(stack, stream=False, logprobs=True, max_tokens=1, logit_bias=dict.fromkeys(banned, -100))
        assert bytes(kept_away.logprobs[0].bytes or []) != first


async def test_a_seed_repeats_an_answer(engine: RealEngine, start_gateway: StartStack) -> None:
    wanted: dict[str, Any] = {"temperature": 1.5, "max_tokens": 16, "extra_body": WITHOUT_END}
    async with start_gateway() as stack:
        texts = [(await ask(stack, stream=False, seed=seed, **wanted)).text for seed in (-7, -7, 2**40, 2**40 + 1)]
        assert texts[2] != texts[3]
        if engine.kind.protocol != "mlx":  # it seeds a generator that it draws from elsewhere
            assert texts[0] == texts[1]


@pytest.mark.parametrize("top", [0, 1, 3, 20])
@BOTH
async def test_log_probabilities_spell_the_text(start_gateway: StartStack, stream: bool, top: int) -> None:
    async with start_gateway() as stack:
        answer = await ask(stack, stream=stream, logprobs=True, top_logprobs=top, extra_body=WITHOUT_END)
        assert b"".join(bytes(entry.bytes or []) for entry in answer.logprobs).decode("utf-8", "replace") == answer.text
        assert len(answer.logprobs) == answer.tokens == 24
        for entry in answer.logprobs:
            values = [other.logprob for other in entry.top_logprobs]
            assert len(values) == top
            assert values == sorted(values, reverse=True)
            assert entry.logprob <= 0
            assert not top or values[0] == entry.logprob  # greedy


async def test_the_likeliest_alternatives_are_listed_also_when_an_unlikely_token_was_drawn(
    start_gateway: StartStack,
) -> None:
    async with start_gateway() as stack:
        wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "max_tokens": 1}
        (likely,) = (await ask(stack, stream=False, **wanted)).logprobs
        for seed in range(5):
            (drawn,) = (await ask(stack, stream=False, temperature=2, seed=seed, **wanted)).logprobs
            # By their values: of equally likely tokens any may come first.
            assert [other.logprob for other in drawn.top_logprobs] == [other.logprob for other in likely.top_logprobs]


@BOTH
async def test_a_length_limit_is_told(engine: RealEngine, start_gateway: StartStack, stream: bool) -> None:
    async with start_gateway() as stack:
        answer = await ask(stack, stream=stream, max_tokens=7, extra_body=WITHOUT_END)
        assert (answer.finish, answer.tokens) == ("length", 7)
        await at_rest(stack, engine)


async def test_characters_cut_across_tokens_come_whole(start_gateway: StartStack) -> None:
    async with start_gateway() as stack:
        plain = await prompt_ids(stack, [{"role": "user", "content": ""}])
        emoji = await prompt_ids(stack, [{"role": "user", "content": "👩‍👩‍👧‍👦你好"}])
        pieces = {str(token): 100 for token in emoji if token not in plain}
        assert len(pieces) > 4
        wanted: dict[str, Any] = {"logit_bias": pieces, "max_tokens": 40, "extra_body": WITHOUT_END}
        await ask(stack, stream=False)
        whole = await ask(stack, stream=False, **wanted)
        streamed = await ask(stack, stream=True, **wanted)
        assert any(ord(character) > 127 for character in whole.text)
        assert streamed.text == whole.text


async def test_a_prompt_over_the_context_is_refused_by_the_gateway(
    engine: RealEngine, start_gateway: StartStack
) -> None:
    messages = [{"role": "user", "content": "word " * engine.kind.context_tokens}]
    async with start_gateway() as stack:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(stack, stream=False, messages=messages)
        assert raised.value.code == "context_length_exceeded"
        assert "Please shorten" in raised.value.message


@BOTH
async def test_a_prompt_over_the_context_is_refused_by_the_engine(
    engine: RealEngine, start_gateway: StartStack, stream: bool
) -> None:
    if engine.kind.protocol == "mlx":
        pytest.skip("it takes prompts of any length")
    async with start_gateway(pool={"context_tokens": 1_000_000}) as stack:
        for words in (engine.kind.context_tokens, engine.kind.context_tokens * 3):
            messages = [{"role": "user", "content": "word " * words}]
            with pytest.raises(openai.BadRequestError) as raised:
                await ask(stack, stream=stream, messages=messages)
            assert raised.value.code == "context_length_exceeded"
            assert "longer than the maximum model length" in raised.value.message
        await at_rest(stack, engine)


@BOTH
async def test_bad_sampling_is_refused_in_the_engines_words(
    engine: RealEngine, start_gateway: StartStack, stream: bool
) -> None:
    if engine.kind.protocol == "mlx":
        pytest.skip("it takes everything that it is sent")
    async with start_gateway() as stack:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask_all(stack, stream=stream, n=2, temperature=0)
        assert "n must be 1 when using greedy sampling, got 2." in raised.value.message


@pytest.mark.parametrize("fields", [{"logit_bias": {"60000": 1}}, {"stop_token_ids": [60000]}], ids=str)
async def test_what_an_engine_dies_of_never_reaches_it(start_gateway: StartStack, fields: dict[str, Any]) -> None:
    async with start_gateway() as stack:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(stack, stream=False, extra_body=fields)
        assert raised.value.param == next(iter(fields))
        boundless = await ask(stack, stream=False, temperature=1, extra_body={"top_k": 10**9, **WITHOUT_END})
        assert boundless.tokens == 24


@BOTH
async def test_a_client_that_goes_frees_the_engine(engine: RealEngine, start_gateway: StartStack, stream: bool) -> None:
    async with start_gateway() as stack:
        endless = request_of(stack, max_tokens=1900, extra_body=WITHOUT_END)

        async def at_work() -> bool:
            return await requests_at_work(engine) == 1

        if stream:
            chunks = await stack.client().chat.completions.create(stream=True, **endless)
            assert await anext(aiter(chunks))
            await eventually(at_work, "the engine at work")
            await chunks.close()
        else:
            request = asyncio.create_task(stack.client().chat.completions.create(**endless))
            await eventually(at_work, "the engine at work")
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        await at_rest(stack, engine)


@BOTH
async def test_a_deadline_frees_the_engine(engine: RealEngine, start_gateway: StartStack, stream: bool) -> None:
    # Short, for the smallest model may say all that it can within a second.
    async with start_gateway(settings={"limits": {"deadline_s": 0.1}}) as stack:
        with pytest.raises(openai.APIError) as raised:
            await ask(stack, stream=stream, max_tokens=1900, extra_body=WITHOUT_END)
        assert "longer than this gateway allows" in raised.value.message
        await at_rest(stack, engine)


async def test_a_request_that_the_engine_gives_up_ends_with_an_error(
    engine: RealEngine, start_gateway: StartStack
) -> None:
    async with start_gateway() as stack:
        endless = request_of(stack, max_tokens=1900, extra_body=WITHOUT_END)
        chunks = await stack.client().chat.completions.create(stream=True, **endless)
        first = await anext(aiter(chunks))
        await abort(engine, first.id)
        with pytest.raises(openai.APIError) as raised:
            async for _ in chunks:
                pass
        assert raised.value.code in ("aborted", "stream_truncated")
        await at_rest(stack, engine)


async def test_many_at_once_get_each_their_own_answer(engine: RealEngine, start_gateway: StartStack) -> None:
    async with start_gateway() as stack:

        async def one(number: int) -> None:
            messages = [{"role": "user", "content": f"Number {number} " * (number + 1)}]
            ids = await prompt_ids(stack, messages)
            answer = await ask(
                stack, stream=bool(number % 2), messages=messages, max_tokens=6 + number, extra_body=WITHOUT_END
            )
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.tokens) == (len(ids), 6 + number)

        await asyncio.gather(*(one(number) for number in range(16)))
        await at_rest(stack, engine)
