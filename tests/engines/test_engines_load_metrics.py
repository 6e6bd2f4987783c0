"""Engines' load is read from their metrics, whatever they are called; what they do not say is unknown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from extproc.config.address import HostPort
from extproc.engines.base import EngineRequest
from extproc.engines.http_get import HttpGetError, http_get
from extproc.engines.load_metrics import EngineLoad, load_of, load_samples
from extproc.engines.rank_field import RankField
from extproc.engines.vllm import VllmEngine
from extproc.ir import Sampling
from extproc.token_ids import TokenIds
from extproc.transport.framing import Deframer, frame

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m \\"x\\", {y}"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_requests_waiting_by_reason{engine="1"} 99.0
python_gc_objects_collected_total{generation="0"} 1.0
"""


@pytest.mark.parametrize(
    ("text", "rank", "load"),
    [
        (VLLM, None, EngineLoad(7, 8, 0.75)),
        (VLLM, 0, EngineLoad(0, 3, 0.25)),
        (VLLM, 1, EngineLoad(7, 5, 0.75)),
        (
            'sglang:num_queue_reqs{tp_rank="0"} 2\nsglang:num_running_reqs{tp_rank="0"} 4\nsglang:token_usage 0.5\n',
            None,
            EngineLoad(2, 4, 0.5),
        ),
        (
            "trtllm_num_requests_waiting 1\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.1\n",
            None,
            EngineLoad(1, 2, 0.1),
        ),
        (
            'nv_trt_llm_request_metrics{request_type="waiting",model="x"} 6\n'
            'nv_trt_llm_request_metrics{request_type="scheduled"} 8\n'
            'nv_trt_llm_request_metrics{request_type="max"} 512\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.9\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"} 1000\n',
            None,
            EngineLoad(6, 8, 0.9),
        ),
        ("vllm:num_requests_running 3\n", None, EngineLoad(None, 3, None)),
        ("vllm:num_requests_running NaN\nvllm:num_requests_waiting\nvllm:kv_cache_usage_perc x\n", None, EngineLoad()),
        ("vllm:kv_cache_usage_perc 1.01\n", None, EngineLoad(None, None, 1.0)),
        ("", None, EngineLoad()),
    ],
)
def test_each_engines_names(text: str, rank: int | None, load: EngineLoad) -> None:
    assert load_of(load_samples(text), rank) == load


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, hold: bool = False) -> AsyncIterator[HostPort]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if not hold:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield HostPort("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "hold", "result"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", False, (200, b"to the end")),
        (b"HTTP/1.0 503 Busy\r\nContent-Length: 3\r\n\r\nyes and more", True, (503, b"yes")),
        (b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", True, (204, b"")),
    ],
)
async def test_a_get_reads_to_the_length_or_the_end(answer: bytes, hold: bool, result: tuple[int, bytes]) -> None:
    async with answering(answer, hold=hold) as address:
        assert await http_get(address, "/x", timeout_s=5, limit_bytes=100) == result


@pytest.mark.parametrize(
    ("answer", "hold", "words"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n", True, "over 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, False, "over 100 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", False, "bytes"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False, "no HTTP answer"),
        (b"", False, "bytes"),
        (b"HTTP/1.1 200 OK\r\n", True, "did not answer within 0.2 s"),
    ],
)
async def test_a_get_of_something_else_says_what_there_was(answer: bytes, hold: bool, words: str) -> None:
    async with answering(answer, hold=hold) as address:
        with pytest.raises(HttpGetError, match=words):
            await http_get(address, "/x", timeout_s=0.2, limit_bytes=100)


@pytest.mark.parametrize("rank", [0, 1, 127, 128, 1023])
def test_a_rank_is_added_to_a_request_that_is_serialized_already(rank: int) -> None:
    from smg_grpc_proto.generated.vllm_engine_pb2 import GenerateRequest

    engine = VllmEngine()
    plain = engine.generate("id", TokenIds.of([1, 2, 3]), Sampling(), stream=True)
    (before,) = Deframer(1 << 20).feed(plain.body)
    (after,) = Deframer(1 << 20).feed(engine.with_rank(plain, rank).body)
    expected = GenerateRequest.FromString(before)
    assert not expected.HasField("data_parallel_rank")
    expected.data_parallel_rank = rank
    assert GenerateRequest.FromString(after) == expected


def test_a_rank_may_have_a_tag_of_two_bytes() -> None:
    from smg_grpc_proto.generated.sglang_scheduler_pb2 import GenerateRequest

    request = EngineRequest("/x", frame(GenerateRequest(request_id="id").SerializeToString()))
    (message,) = Deframer(1 << 20).feed(RankField(GenerateRequest, "data_parallel_rank").add(request, 300).body)
    assert GenerateRequest.FromString(message) == GenerateRequest(request_id="id", data_parallel_rank=300)
