"""grpc.health.v1, asked through the official stubs and over both transports."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from transport_probe import PATIENCE_S, Connect, Start

from extproc.transport.health import Health, ServingStatus, decode_request, encode_response
from extproc.transport.serving import TransportName
from extproc.transport.status import RpcError

Request = health_pb2.HealthCheckRequest


@pytest.fixture(params=["ngh2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    return request.param


async def test_check_tells_the_status_of_a_service(start: Start, connect: Connect) -> None:
    health = Health()
    health.set("extproc", ServingStatus.NOT_SERVING)
    stub = health_pb2_grpc.HealthStub(connect(await start(health.service())))
    assert (await stub.Check(Request())).status == ServingStatus.SERVING
    assert (await stub.Check(Request(service="extproc"))).status == ServingStatus.NOT_SERVING
    health.set("extproc", ServingStatus.SERVING)
    assert (await stub.Check(Request(service="extproc"))).status == ServingStatus.SERVING


async def test_check_of_an_unknown_service_is_not_found(start: Start, connect: Connect) -> None:
    stub = health_pb2_grpc.HealthStub(connect(await start(Health().service())))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Check(Request(service="nobody"))
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_tells_every_change(start: Start, connect: Connect) -> None:
    health = Health()
    stub = health_pb2_grpc.HealthStub(connect(await start(health.service())))
    watch = stub.Watch(Request(service="extproc"))
    other = stub.Watch(Request())
    assert (await watch.read()).status == ServingStatus.SERVICE_UNKNOWN
    assert (await other.read()).status == ServingStatus.SERVING
    for status in (ServingStatus.NOT_SERVING, ServingStatus.SERVING, ServingStatus.SERVING, ServingStatus.UNKNOWN):
        health.set("extproc", status)
    changes = [(await watch.read()).status for _ in range(3)]
    assert changes == [ServingStatus.NOT_SERVING, ServingStatus.SERVING, ServingStatus.UNKNOWN]
    health.shut_down()
    health.set("extproc", ServingStatus.SERVING)
    assert (await watch.read()).status == ServingStatus.NOT_SERVING
    assert (await other.read()).status == ServingStatus.NOT_SERVING
    assert (await stub.Check(Request(service="extproc"))).status == ServingStatus.NOT_SERVING


async def test_a_stop_need_not_wait_for_watches(start: Start, connect: Connect) -> None:
    health = Health()
    server = await start(health.service())
    watch = health_pb2_grpc.HealthStub(connect(server)).Watch(Request())
    await watch.read()
    health.end_watches()
    async with asyncio.timeout(PATIENCE_S):
        await server.stop(10 * PATIENCE_S)
    assert await watch.code() is grpc.StatusCode.UNAVAILABLE


async def test_bad_bytes_are_an_invalid_argument(start: Start, connect: Connect) -> None:
    channel = connect(await start(Health().service()))
    for method in ("Check", "Watch"):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await channel.unary_unary(f"/grpc.health.v1.Health/{method}")(b"\x0a\x7f")
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@given(st.text())
def test_requests_are_read_as_protobuf_writes_them(name: str) -> None:
    assert decode_request(Request(service=name).SerializeToString()) == name


@pytest.mark.parametrize("status", list(ServingStatus))
def test_responses_are_written_as_protobuf_reads_them(status: ServingStatus) -> None:
    assert health_pb2.HealthCheckResponse.FromString(encode_response(status)).status == status


def test_unknown_fields_are_skipped() -> None:
    unknown = b"\x10\xac\x02" + b"\x19" + bytes(8) + b"\x22\x02ab" + b"\x2d" + bytes(4)
    assert decode_request(unknown + Request(service="extproc").SerializeToString() + unknown) == "extproc"


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(RpcError):
        assert isinstance(decode_request(data), str)
