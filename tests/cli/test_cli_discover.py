"""Workers are grouped by what makes their token ids interchangeable."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator, Iterable

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace
from smg_grpc_proto.generated import (
    common_pb2,
    mlx_engine_pb2,
    mlx_engine_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)

from extproc.cli.discover import FoundWorker, discover, group, pool_name
from extproc.cli.errors import CommandError
from extproc.config.address import HostPort
from extproc.engines.control import ModelInfo

MODEL = ModelInfo(
    served_name="org/Tiny-1B",
    model_path="/models/tiny",
    tokenizer_path="/models/tiny",
    context_tokens=4096,
    vocabulary=1000,
    eos_token_ids=(2,),
    block_tokens=16,
    data_parallel_size=1,
)
WORKER = FoundWorker(HostPort("10.0.0.1", 9000), "vllm", MODEL, frozenset({("tokenizer.json", 1, 2)}))


def worker(port: int, **changes: object) -> FoundWorker:
    tokenizer = changes.pop("tokenizer", WORKER.tokenizer)
    engine = changes.pop("engine", WORKER.engine)
    return FoundWorker(HostPort("10.0.0.1", port), engine, replace(MODEL, **changes), tokenizer)  # type: ignore[arg-type]


def test_workers_of_one_model_form_a_pool() -> None:
    (pool,) = group([worker(1), worker(2, model_path="/elsewhere/tiny")])
    assert pool.name == "org-tiny-1b"
    assert pool.model == "org/Tiny-1B"
    assert pool.workers == (HostPort("10.0.0.1", 1), HostPort("10.0.0.1", 2))
    assert pool.context_tokens == 4096


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "mlx"},
        {"served_name": "org/other"},
        {"tokenizer": frozenset({("tokenizer.json", 7, 2)})},
        {"vocabulary": 1001},
        {"context_tokens": 8192},
        {"block_tokens": 32},
        {"eos_token_ids": (3,)},
    ],
)
def test_workers_that_differ_in_what_counts_form_pools_of_their_own(change: dict[str, object]) -> None:
    pools = group([worker(1), worker(2, **change), worker(3)])
    assert [[address.port for address in pool.workers] for pool in pools] == [[1, 3], [2]]
    assert len({pool.name for pool in pools}) == 2


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama-llama-3-1-8b"),
        ("/models/x", "models-x"),
        ("模型", "pool"),
        ("x" * 80, "x" * 56),
        ("processor", "processor-2"),
        ("taken", "taken-2"),
    ],
)
def test_a_pool_is_named_after_its_model_as_a_configuration_takes_it(model: str, name: str) -> None:
    assert pool_name(model, {"taken"}) == name


def archive(files: Iterable[tuple[str, str]], year: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for name, text in files:
            target.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), text)
    return packed.getvalue()


class FakeEngine(vllm_engine_pb2_grpc.VllmEngineServicer):
    """The control calls only, well-behaved; healthy from the second check on."""

    def __init__(self, tokenizer: bytes) -> None:
        self._tokenizer = tokenizer
        self._checks = 0

    async def HealthCheck(self, request: object, context: object) -> vllm_engine_pb2.HealthCheckResponse:  # noqa: N802
        self._checks += 1
        return vllm_engine_pb2.HealthCheckResponse(healthy=self._checks > 1)

    async def GetModelInfo(self, request: object, context: object) -> vllm_engine_pb2.GetModelInfoResponse:  # noqa: N802
        return vllm_engine_pb2.GetModelInfoResponse(model_path="/m", served_model_name="tiny", max_context_length=512)

    async def GetServerInfo(self, request: object, context: object) -> vllm_engine_pb2.GetServerInfoResponse:  # noqa: N802
        return vllm_engine_pb2.GetServerInfoResponse()

    async def GetTokenizer(  # noqa: N802
        self, request: object, context: object
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        yield common_pb2.GetTokenizerChunk(data=self._tokenizer, sha256="0" * 64)


class FakeMlx(mlx_engine_pb2_grpc.MlxEngineServicer):
    """The same of MLX, whose model is called as its folder."""

    async def HealthCheck(self, request: object, context: object) -> mlx_engine_pb2.HealthCheckResponse:  # noqa: N802
        return mlx_engine_pb2.HealthCheckResponse(healthy=True)

    async def GetModelInfo(self, request: object, context: object) -> mlx_engine_pb2.GetModelInfoResponse:  # noqa: N802
        return mlx_engine_pb2.GetModelInfoResponse(model_path="/m", max_context_length=512, vocab_size=9)

    async def GetServerInfo(self, request: object, context: object) -> mlx_engine_pb2.GetServerInfoResponse:  # noqa: N802
        return mlx_engine_pb2.GetServerInfoResponse(server_type="mlx-grpc")

    async def GetTokenizer(  # noqa: N802
        self, request: object, context: object
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        yield common_pb2.GetTokenizerChunk(data=archive([("tokenizer.json", "{}")], 2024), sha256="0" * 64)


async def serve(engine: FakeEngine | FakeMlx) -> tuple[grpc.aio.Server, HostPort]:
    server = grpc.aio.server()
    if isinstance(engine, FakeMlx):
        mlx_engine_pb2_grpc.add_MlxEngineServicer_to_server(engine, server)
    else:
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, HostPort("127.0.0.1", port)


async def test_workers_are_asked_once_healthy_and_dates_in_their_archives_do_not_matter() -> None:
    servers = [await serve(FakeEngine(archive([("tokenizer.json", "{}")], year))) for year in (2024, 2025)]
    try:
        (pool,) = await discover([address for _, address in servers], wait_s=20.0)
    finally:
        for server, _ in servers:
            await server.stop(None)
    assert (pool.engine, pool.model) == ("vllm", "tiny")
    assert pool.workers == tuple(address for _, address in servers)
    assert pool.context_tokens == 512


async def test_the_protocol_of_a_worker_is_found_out() -> None:
    tokenizer = archive([("tokenizer.json", "{}")], 2024)
    servers = [await serve(FakeMlx()), await serve(FakeEngine(tokenizer))]
    try:
        pools = await discover([address for _, address in servers], wait_s=20.0)
    finally:
        for server, _ in servers:
            await server.stop(None)
    assert [(pool.engine, pool.model, pool.context_tokens) for pool in pools] == [
        ("mlx", "/m", 512),
        ("vllm", "tiny", 512),
    ]


async def test_every_worker_that_cannot_be_used_is_named() -> None:
    server, broken = await serve(FakeEngine(b"no zip"))
    dead = HostPort("127.0.0.1", 1)
    try:
        with pytest.raises(CommandError) as caught:
            await discover([broken, dead], wait_s=3.0)
    finally:
        await server.stop(None)
    assert f"{broken} is no zip" in str(caught.value)
    assert f"{dead} was not healthy within 3 s" in str(caught.value)
