"""Everything but Generate."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from simulator_client import chat
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from tokenizers import Tokenizer

from extproc.simulator.spec import OWN_MODEL

SLOW = {"decode_step_s": 0.01}


async def test_health(start):
    client = await start()
    answer = await client.stub.HealthCheck(pb.HealthCheckRequest())
    assert (answer.healthy, answer.message) == (True, "Health")


async def test_health_protocol_knows_the_server_and_the_service_and_nothing_else(start):
    client = await start()
    health = health_pb2_grpc.HealthStub(client.channel)
    for name in ("", "vllm.grpc.engine.VllmEngine"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health.Check(health_pb2.HealthCheckRequest(service="other"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_model_info(start):
    client = await start(model="tiny", context_tokens=2048)
    info = await client.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.served_model_name == "tiny"
    assert info.model_path == info.tokenizer_path == str(OWN_MODEL)
    assert info.is_generation
    assert info.max_context_length == 2048
    assert info.vocab_size == 4096
    assert list(info.eos_token_ids) == [client.artifacts.tokenizer.token_to_id("<|im_end|>")]


async def test_server_info(start):
    client = await start(block_tokens=32, max_running=7)
    info = await client.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (info.block_size, info.max_num_seqs, info.data_parallel_size) == (32, 7, 1)


async def test_tokenizer_comes_as_a_zip_in_pieces_with_its_digest_last(start):
    client = await start()
    chunks = [chunk async for chunk in client.stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    archive = b"".join(chunk.data for chunk in chunks)
    assert [bool(chunk.sha256) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(files.namelist())
        tokenizer = Tokenizer.from_str(files.read("tokenizer.json").decode())
    assert tokenizer.encode("a river", add_special_tokens=False).ids == client.artifacts.encode("a river")


async def test_large_tokenizer_needs_several_pieces(start, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((OWN_MODEL / "tokenizer.json").read_bytes())
    # Digits that do not compress away.
    noise = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(6000))
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": "{noise}"}}')
    client = await start(tokenizer=tmp_path)
    chunks = [chunk async for chunk in client.stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    assert len(chunks) > 1
    assert [bool(chunk.sha256) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    with zipfile.ZipFile(io.BytesIO(b"".join(chunk.data for chunk in chunks))) as files:
        assert files.testzip() is None


async def test_loads_tell_what_runs_and_what_waits(start):
    client = await start(**SLOW, max_running=2, block_tokens=16, kv_cache_tokens=1600)
    cached = list(range(100, 148))
    await client.generate(cached, max_tokens=1)
    running = client.stub.Generate(client.request([5] * 33, n=2, ignore_eos=True))
    await running.read()
    waiting = client.stub.Generate(client.request([*cached, 9, 9], max_tokens=1))
    load = await client.until(lambda load: load.num_waiting_reqs == 1)
    assert (load.num_running_reqs, load.num_total_reqs) == (2, 3)
    assert load.num_waiting_uncached_tokens == 2
    assert load.num_used_tokens >= 32
    assert load.max_total_num_tokens == 1600
    assert load.token_usage == pytest.approx(load.num_used_tokens / 1600)
    running.cancel()
    assert (await client.read(waiting)).complete().cached_tokens == 48


async def test_loads_of_a_rank_that_does_not_exist_are_empty(start):
    client = await start()
    assert not (await client.stub.GetLoads(pb.GetLoadsRequest(dp_rank=1))).loads


async def test_prompts_are_prefilled_in_turn(start):
    client = await start(prefill_tokens_per_s=1000.0)
    first = client.stub.Generate(client.request([5] * 100, max_tokens=1, request_id="long"))
    await client.until(lambda load: load.num_running_reqs == 1)
    second = client.stub.Generate(client.request([6], max_tokens=1))
    load = await client.until(lambda load: load.num_waiting_reqs == 1)
    assert load.num_waiting_uncached_tokens == 1
    await client.read(first)
    assert len((await client.read(second)).completes) == 1


async def test_response_headers_come_with_the_first_token(start):
    client = await start(prefill_tokens_per_s=10.0)
    call = client.stub.Generate(client.request([5] * 100, request_id="x"))
    await client.until(lambda load: load.num_running_reqs == 1)
    answer = await client.stub.HealthCheck(pb.HealthCheckRequest())
    assert answer.healthy
    # Headers sent with the request's arrival would have come before that answer, on the same connection.
    headers = asyncio.ensure_future(call.initial_metadata())
    done, _ = await asyncio.wait([headers], timeout=0.05)
    assert not done
    headers.cancel()
    call.cancel()


@pytest.mark.parametrize("state", ["decoding", "in prefill", "waiting"])
async def test_client_that_leaves_frees_the_engine(start, state):
    options = SLOW if state == "decoding" else {"prefill_tokens_per_s": 1.0}
    client = await start(**options)
    blocker = None
    if state == "waiting":
        blocker = client.stub.Generate(client.request([4] * 64))
        await client.until(lambda load: load.num_running_reqs == 1)
    call = client.stub.Generate(client.request([5] * 64, n=2, ignore_eos=True))
    if state == "decoding":
        await call.read()
    elif state == "in prefill":
        await client.until(lambda load: load.num_running_reqs == 2)
    else:
        await client.until(lambda load: load.num_total_reqs == 3)
    call.cancel()
    if blocker is not None:
        load = await client.until(lambda load: load.num_total_reqs == 1)
        assert load.num_waiting_reqs == 0
        blocker.cancel()
    load = await client.until(lambda load: load.num_total_reqs == 0)
    assert load.num_used_tokens == 0


async def test_prefill_given_up_lets_the_next_one_begin(start):
    client = await start(prefill_tokens_per_s=100.0)
    stuck = client.stub.Generate(client.request([5] * 8000))
    await client.until(lambda load: load.num_running_reqs == 1)
    following = client.stub.Generate(client.request(chat("hi")))
    await client.until(lambda load: load.num_waiting_reqs == 1)
    stuck.cancel()
    assert client.text((await client.read(following)).ids()) == "hi"


@pytest.mark.parametrize("stream", [True, False])
async def test_abort_ends_the_answer_without_ids(start, stream):
    client = await start(**SLOW)
    call = client.stub.Generate(client.request([5] * 64, request_id="me", stream=stream, ignore_eos=True))
    await client.until(lambda load: load.num_running_reqs == 1)
    await client.stub.Abort(pb.AbortRequest(request_ids=["me", "unknown"]))
    complete = (await client.read(call)).complete()
    assert complete.finish_reason == "abort"
    assert not complete.output_ids
    assert complete.completion_tokens == 0
    assert (await client.load()).num_total_reqs == 0
    assert set(client.engine.aborted_ids) == {"me", "unknown"}


async def test_two_requests_with_one_id_both_run(start):
    client = await start(**SLOW)
    calls = [client.stub.Generate(client.request(chat("hi"), request_id="same")) for _ in range(2)]
    assert [client.text((await client.read(call)).ids()) for call in calls] == ["hi", "hi"]


async def test_flush_empties_the_cache(start):
    client = await start()
    prompt = list(range(100, 200))
    await client.generate(prompt)
    assert (await client.stub.FlushCache(common_pb2.FlushCacheRequest())).success
    assert (await client.generate(prompt)).complete().cached_tokens == 0


async def test_flush_is_refused_while_requests_run_or_waits_for_them(start):
    client = await start(**SLOW)
    call = client.stub.Generate(client.request([5] * 64, max_tokens=10, ignore_eos=True))
    await call.read()
    assert not (await client.stub.FlushCache(common_pb2.FlushCacheRequest())).success
    assert (await client.stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=10.0))).success
    assert len((await client.read(call)).completes) == 1


@pytest.mark.parametrize(
    ("method", "request_message", "code"),
    [
        ("Embed", pb.EmbedRequest(), grpc.StatusCode.INVALID_ARGUMENT),
        ("StartProfile", common_pb2.StartProfileRequest(), grpc.StatusCode.INTERNAL),
    ],
)
async def test_what_a_generating_engine_cannot_do(start, method, request_message, code):
    client = await start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(client.stub, method)(request_message)
    assert caught.value.code() is code


async def test_kv_events_are_not_there_where_they_are_off(start):
    client = await start(no_kv_events=True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest()).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
