"""Requests that the engine refuses: INVALID_ARGUMENT before any message, with texts that gateways look into."""

from __future__ import annotations

import grpc
import pytest

CASES = {
    "longer than the context": (
        [100] * 65,
        {},
        "The decoder prompt (length 65) is longer than the maximum model length of 64. ",
    ),
    "as long as the context": ([100] * 64, {}, "The decoder prompt (length 64) plus the number of requested output"),
    "no prompt": ([], {}, "The decoder prompt cannot be empty"),
    "unknown token": ([999_999], {}, "Token id 999999 is out of vocabulary"),
    "temperature": ([100], {"temperature": -1.0}, "temperature must be non-negative, got -1.0"),
    "top_p": ([100], {"top_p": 1.5}, "top_p must be in (0, 1], got 1.5"),
    "min_p": ([100], {"min_p": 2.0}, "min_p must be in [0, 1]"),
    "penalty": ([100], {"presence_penalty": 3.0}, "presence_penalty must be in [-2, 2]"),
    "max_tokens": ([100], {"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    "min over max": (
        [100],
        {"max_tokens": 2, "min_tokens": 3},
        "min_tokens must be less than or equal to max_tokens=2",
    ),
    "logprobs": ([100], {"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
    "all logprobs": ([100], {"logprobs": -1}, "greater than max allowed"),
    "prompt logprobs": ([100], {"prompt_logprobs": 21}, "Requested prompt logprobs of 21"),
    "too many choices": ([100], {"n": 20_000}, "n must be at most 16384"),
    "empty stop": ([100], {"stop": [""]}, "stop cannot contain an empty string"),
    "greedy choices": ([100], {"n": 2, "temperature": 0.0}, "n must be 1 when using greedy sampling, got 2."),
    "bias": ([100], {"logit_bias": {999_999: 1.0}}, "token_id(s) [999999] in logit_bias contain out-of-vocab"),
    "stop token": ([100], {"stop_token_ids": [999_999]}, "token_id(s) [999999] in stop_token_ids contain out-of-vocab"),
}


@pytest.mark.parametrize(("prompt", "sampling", "details"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("stream", [True, False])
async def test_is_refused_before_any_message(start, prompt, sampling, details, stream):
    client = await start(context_tokens=64)
    call = client.stub.Generate(client.request(prompt, stream=stream, **sampling))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details in caught.value.details()
    assert client.engine.load().running == client.engine.load().waiting == 0


async def test_rank_that_does_not_exist(start):
    client = await start()
    request = client.request([100])
    request.data_parallel_rank = 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(client.stub.Generate(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_zeros_of_an_empty_sampling_message_are_defaults(start):
    client = await start()
    assert (await client.generate([100, 101])).complete().finish_reason == "stop"


async def test_bytes_that_are_no_request(start):
    client = await start()
    call = client.channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate")(b"\xff\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_call_without_a_message(start):
    client = await start()
    call = client.channel.stream_stream("/vllm.grpc.engine.VllmEngine/Generate")()
    await call.done_writing()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
