"""What goes wrong on request."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from simulator_client import chat
from smg_grpc_proto.generated import sglang_scheduler_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.simulator.faults import Break, Faults

TIMES = [{}, {"decode_step_s": 0.001, "prefill_tokens_per_s": 100_000.0}]
PROMPT = chat("one two three four five six seven eight")


async def broken(client, **options):
    """The messages before the error, and the error."""
    call = client.stub.Generate(client.request(PROMPT, **options))
    messages = []
    try:
        async for message in call:
            messages.append(message)
    except grpc.aio.AioRpcError as error:
        return messages, error
    pytest.fail("the answer ended well")


@pytest.mark.parametrize("status", [8, 14])
async def test_refuses(start, status):
    client = await start(faults=Faults(refuse_status=status, details="full"))
    messages, error = await broken(client)
    assert messages == []
    assert (error.code().value[0], error.details()) == (status, "full")
    assert len(client.engine.requests) == 1


async def test_refuses_so_many_times(start):
    client = await start(faults=Faults(refuse_status=14, times=2))
    for _ in range(2):
        await broken(client)
    assert (await client.generate(PROMPT)).complete().finish_reason == "stop"


@pytest.mark.parametrize("times", TIMES)
async def test_error_in_the_middle(start, times):
    client = await start(**times, faults=Faults(break_kind=Break.ERROR, break_after=3, status=13, details="oh"))
    messages, error = await broken(client)
    assert len(messages) == 3
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "oh")
    assert (await client.load()).num_total_reqs == 0


async def test_error_instead_of_a_whole_answer(start):
    client = await start(faults=Faults(break_kind=Break.ERROR))
    messages, _ = await broken(client, stream=False)
    assert messages == []


@pytest.mark.parametrize("times", TIMES)
async def test_reset_in_the_middle(start, times):
    client = await start(**times, faults=Faults(break_kind=Break.RESET, break_after=3))
    messages, error = await broken(client)
    assert len(messages) <= 3  # grpcio drops messages that it reads together with the reset
    assert "RST_STREAM" in error.details()
    assert (await client.load()).num_total_reqs == 0


async def test_headers_alone_and_then_an_error(start):
    client = await start(faults=Faults(break_kind=Break.HEADERS, status=14, details="after headers"))
    call = client.stub.Generate(client.request(PROMPT))
    await call.initial_metadata()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(call)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "after headers")
    assert "grpc-status" not in dict(await call.initial_metadata())


@pytest.mark.parametrize("times", TIMES)
async def test_cut_in_the_middle_of_a_message(start, times):
    client = await start(**times, faults=Faults(break_kind=Break.CUT, break_after=2, times=1))
    messages, error = await broken(client)
    assert len(messages) <= 2
    assert "RST_STREAM" in error.details()
    assert (await client.load()).num_total_reqs == 0
    await client.generate(PROMPT)  # the connection is as good as before


@pytest.mark.parametrize("times", TIMES)
async def test_stall_lasts_until_the_client_leaves(start, times):
    client = await start(**times, faults=Faults(break_kind=Break.STALL, break_after=2))
    call = client.stub.Generate(client.request(PROMPT))
    for _ in range(2):
        await call.read()
    third = asyncio.ensure_future(call.read())
    done, _ = await asyncio.wait([third], timeout=0.05)
    assert not done
    assert (await client.load()).num_running_reqs == 1
    call.cancel()
    await asyncio.wait([third])
    await client.until(lambda load: load.num_total_reqs == 0)


@pytest.mark.parametrize("times", TIMES)
async def test_dies_in_the_middle(start, times):
    client = await start(**times, faults=Faults(break_kind=Break.DIE, break_after=3))
    messages, error = await broken(client)
    assert len(messages) == 3
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*client.engine.address.split(":"))


@pytest.mark.parametrize("how", ["by itself", "from outside"])
async def test_restarts_at_the_same_address_with_an_empty_cache(start, how):
    prompt = list(range(100, 180))
    client = await start()
    await client.generate(prompt)
    assert (await client.generate(prompt)).complete().cached_tokens == 64
    ended = client.engine.engine
    if how == "by itself":
        client.engine.faults = Faults(break_kind=Break.RESTART, break_after=1)
        await broken(client)
    else:
        await client.engine.restart(0.0)
    async with asyncio.timeout(10):
        while client.engine.engine is ended or not client.engine.address:  # noqa: ASYNC110  # a process has no event for its successor
            await asyncio.sleep(0.01)
        client.engine.faults = Faults()
        answer = await client.generate_anew(prompt)
    assert answer.complete().cached_tokens == 0


async def test_killed_from_outside(start):
    client = await start(decode_step_s=0.01)
    call = client.stub.Generate(client.request(PROMPT, ignore_eos=True))
    await call.read()
    await client.engine.kill()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.read(call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_garbage_between_messages(start):
    client = await start(faults=Faults(break_kind=Break.GARBAGE, break_after=2))
    raw = client.channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate", request_serializer=pb.GenerateRequest.SerializeToString
    )
    messages = [message async for message in raw(client.request(PROMPT))]
    readable = []
    for message in messages:
        try:
            pb.GenerateResponse.FromString(message)
            readable.append(True)
        except DecodeError:
            readable.append(False)
    assert readable == [True, True, False] + [True] * (len(messages) - 3)


async def test_a_message_of_another_protocol_between_messages(start):
    client = await start(faults=Faults(break_kind=Break.FOREIGN, break_after=1))
    raw = client.channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate", request_serializer=pb.GenerateRequest.SerializeToString
    )
    messages = [message async for message in raw(client.request(PROMPT))]
    foreign = sglang_scheduler_pb2.GenerateResponse.FromString(messages[1])
    assert foreign.request_id
    with pytest.raises(DecodeError):
        pb.GenerateResponse.FromString(messages[1])
    assert pb.GenerateResponse.FromString(messages[-1]).complete.finish_reason == "stop"


async def test_wrong_finish_reason(start):
    client = await start(faults=Faults(finish_reason="banana"))
    assert (await client.generate(PROMPT)).complete().finish_reason == "banana"


async def test_goes_on_over_stop_strings(start):
    client = await start(faults=Faults(ignore_stop_strings=True))
    answer = await client.generate(PROMPT, stop=["three"])
    assert client.text(answer.ids()).endswith("eight")
    assert answer.complete().WhichOneof("matched_stop") is None


async def test_changes_at_run_time(start):
    client = await start()
    await client.generate(PROMPT)
    client.engine.faults = Faults(refuse_status=14)
    await broken(client)
    client.engine.faults = Faults()
    await client.generate(PROMPT)


async def test_unhealthy_in_both_services(start):
    client = await start()
    health = health_pb2_grpc.HealthStub(client.channel)
    client.engine.faults = Faults(unhealthy=True)
    assert not (await client.stub.HealthCheck(pb.HealthCheckRequest())).healthy
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
    client.engine.faults = Faults()
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_slow_start(start):
    client = await start(start_delay_s=0.2)
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    _, error = await broken(client)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await client.generate(PROMPT)
    watch.cancel()


@pytest.mark.parametrize(
    "options",
    [{"refuse_status": 17}, {"status": 0}, {"break_after": -1}, {"times": 0}],
    ids=lambda each: next(iter(each)),
)
def test_senseless_faults_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        Faults(**options)
