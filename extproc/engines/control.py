"""Control calls to engines, over grpcio: rare, so a general client is good enough."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from msgspec import Struct
from smg_grpc_proto.generated import (
    common_pb2,
    mlx_engine_pb2,
    mlx_engine_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)

_MAX_MESSAGE_BYTES = 64 << 20


class ControlError(Exception):
    """A worker did not answer as it should; the text names the worker and what to look at."""


class ModelInfo(Struct, frozen=True):
    """What a worker says of its model."""

    served_name: str
    model_path: str
    tokenizer_path: str
    context_tokens: int  # 0: unknown
    vocabulary: int  # 0: unknown
    eos_token_ids: tuple[int, ...]
    block_tokens: int  # KV-cache block; 0: unknown
    data_parallel_size: int


class RankLoad(Struct, frozen=True):
    """What a worker says of one data-parallel rank."""

    rank: int
    waiting_requests: int
    running_requests: int
    waiting_uncached_tokens: int | None  # of prompts; None: it does not say
    kv_usage: float  # 0 to 1
    kv_tokens: int  # that its KV cache holds; 0: unknown


class TokenizerArchive(Struct, frozen=True):
    """A worker's tokenizer folder as a zip."""

    content: bytes
    sha256: str  # hexadecimal, as the worker computed it


def _vllm_info(model: Any, server: Any) -> ModelInfo:
    return ModelInfo(
        served_name=model.served_model_name or model.model_path,
        model_path=model.model_path,
        tokenizer_path=model.tokenizer_path,
        context_tokens=max(model.max_context_length, 0),
        vocabulary=max(model.vocab_size, 0),
        eos_token_ids=tuple(model.eos_token_ids),
        block_tokens=max(server.block_size, 0),
        data_parallel_size=max(server.data_parallel_size, 1),
    )


def _mlx_info(model: Any, _server: Any) -> ModelInfo:
    return ModelInfo(
        served_name=model.served_model_name or model.model_path,
        model_path=model.model_path,
        tokenizer_path=model.model_path,
        context_tokens=model.max_context_length,
        vocabulary=model.vocab_size,
        eos_token_ids=tuple(model.eos_token_ids),
        block_tokens=0,
        data_parallel_size=1,
    )


class _Service(Struct, frozen=True):
    """An engine's control calls, which have the same names in all protocols."""

    stub: Callable[[grpc.aio.Channel], Any]
    messages: ModuleType
    info: Callable[[Any, Any], ModelInfo]  # of the answers to GetModelInfo and GetServerInfo


_SERVICES = {
    "vllm": _Service(vllm_engine_pb2_grpc.VllmEngineStub, vllm_engine_pb2, _vllm_info),
    "mlx": _Service(mlx_engine_pb2_grpc.MlxEngineStub, mlx_engine_pb2, _mlx_info),
}
"""By the name that a configuration uses."""


_NOBODY = ("connection refused", "no such file or directory")
"""What the operating system says of an address at which nobody listens, as grpcio passes it on."""


def _nobody_listens(error: grpc.RpcError) -> bool:
    """UNAVAILABLE alone may be a moment's trouble on the way, too."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    details = (error.details() or "").lower()
    return any(said in details for said in _NOBODY)


class WorkerControl:
    """Control calls to one worker."""

    def __init__(self, address: str, channel: grpc.aio.Channel, engine: str) -> None:
        self.address = address
        self.engine = engine
        service = _SERVICES[engine]
        self._stub = service.stub(channel)
        self._messages = service.messages
        self._info = service.info

    async def healthy(self, timeout_s: float) -> bool:
        """Whether the worker answers HealthCheck, and well."""
        return await self.check(timeout_s) or False

    async def check(self, timeout_s: float) -> bool | None:
        """The same; None where nobody listens."""
        try:
            answer = await self._stub.HealthCheck(self._messages.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return None if _nobody_listens(error) else False
        return bool(answer.healthy)

    async def model_info(self, timeout_s: float) -> ModelInfo:
        """GetModelInfo and GetServerInfo. Raises ControlError."""
        try:
            model = await self._stub.GetModelInfo(self._messages.GetModelInfoRequest(), timeout=timeout_s)
            server = await self._stub.GetServerInfo(self._messages.GetServerInfoRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._failed("GetModelInfo", error) from error
        return self._info(model, server)

    async def loads(self, timeout_s: float) -> list[RankLoad] | None:
        """GetLoads; None where the protocol or the worker does not have it. Raises ControlError."""
        if not hasattr(self._stub, "GetLoads"):
            return None
        try:
            answer = await self._stub.GetLoads(self._messages.GetLoadsRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            if hasattr(error, "code") and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise self._failed("GetLoads", error) from error
        return [
            RankLoad(
                max(load.dp_rank, 0),
                max(load.num_waiting_reqs, 0),
                max(load.num_running_reqs, 0),
                load.num_waiting_uncached_tokens if load.num_waiting_uncached_tokens > 0 else None,
                min(max(load.token_usage, 0.0), 1.0),
                max(load.max_total_num_tokens, 0),
            )
            for load in answer.loads
        ]

    async def tokenizer(self, timeout_s: float, limit_bytes: int) -> TokenizerArchive:
        """GetTokenizer: a zip in chunks, its digest in the last. Raises ControlError."""
        pieces: list[bytes] = []
        size = 0
        digest = ""
        try:
            async for chunk in self._stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=timeout_s):
                pieces.append(chunk.data)
                size += len(chunk.data)
                digest = chunk.sha256 or digest
                if size > limit_bytes:
                    raise ControlError(
                        f"the tokenizer archive of worker {self.address} is over {limit_bytes} bytes; "
                        "set `tokenizer` of the pool to a folder"
                    )
        except grpc.RpcError as error:
            raise self._failed("GetTokenizer", error) from error
        if not pieces or not digest:
            raise ControlError(
                f"worker {self.address} gave no tokenizer, or one without a digest; "
                "set `tokenizer` of the pool to a folder"
            )
        return TokenizerArchive(b"".join(pieces), digest)

    def _failed(self, call: str, error: grpc.RpcError) -> ControlError:
        code = error.code().name if hasattr(error, "code") else "UNKNOWN"
        details = error.details() if hasattr(error, "details") else str(error)
        return ControlError(
            f"worker {self.address} did not answer {call} ({code}: {details}); is it a gRPC server of {self.engine}?"
        )


@asynccontextmanager
async def connect(address: str, engine: str) -> AsyncIterator[WorkerControl]:
    """A connection to `host:port` for a few calls, to an engine of the given protocol."""
    async with open_channel(address) as channel:
        yield WorkerControl(address, channel, engine)


def open_channel(address: str, options: Sequence[tuple[str, object]] = ()) -> grpc.aio.Channel:
    """A plaintext channel with limits for an archive's chunks; closed by the caller."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.enable_http_proxy", 0),
            *options,
        ],
    )
