"""vLLM's gRPC protocol over an `Engine`: `vllm.grpc.engine.VllmEngine` and the health service.

Methods that are not here answer UNIMPLEMENTED.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2

from extproc.simulator.constants import TOKENIZER_CHUNK_BYTES
from extproc.simulator.engine import Engine
from extproc.simulator.generate import Generation
from extproc.transport.adapters import server_streaming, unary
from extproc.transport.health import Health, ServingStatus
from extproc.transport.service import Call, CallHandler, MethodHandler, Service
from extproc.transport.status import RpcError, Status

SERVICE = "vllm.grpc.engine.VllmEngine"
VERSION = "0.32.0+simulated"

_Request = TypeVar("_Request", bound=Message)


def vllm_service(engine: Engine, health: Health) -> Service:
    """All methods of one engine; its health follows the engine's."""

    def set_health(healthy: bool) -> None:
        status = ServingStatus.SERVING if healthy else ServingStatus.NOT_SERVING
        for name in ("", SERVICE):
            health.set(name, status)

    set_health(engine.healthy)
    engine.on_health = set_health
    control = _Control(engine)
    pb = vllm_engine_pb2
    methods: dict[str, MethodHandler] = {
        "Generate": lambda call: _GenerateCall(call, engine),
        "Abort": _method(pb.AbortRequest, control.abort),
        "HealthCheck": _method(pb.HealthCheckRequest, control.health_check),
        "GetModelInfo": _method(pb.GetModelInfoRequest, control.model_info),
        "GetServerInfo": _method(pb.GetServerInfoRequest, control.server_info),
        "GetLoads": _method(pb.GetLoadsRequest, control.loads),
        "GetTokenizer": server_streaming(control.tokenizer),
        "FlushCache": _method(common_pb2.FlushCacheRequest, control.flush_cache),
        "Embed": _method(pb.EmbedRequest, control.embed),
        "StartProfile": _method(common_pb2.StartProfileRequest, control.profile),
        "StopProfile": _method(common_pb2.StopProfileRequest, control.profile),
    }
    if engine.kv_events is not None:
        methods["SubscribeKvEvents"] = engine.kv_events.subscribe
    return {**{f"/{SERVICE}/{name}": handler for name, handler in methods.items()}, **health.service()}


def _method(kind: type[_Request], function: Callable[[_Request], Message | Awaitable[Message]]) -> MethodHandler:
    """A unary method on messages."""

    def answer(data: bytes) -> bytes | Awaitable[bytes]:
        try:
            request = kind.FromString(data)
        except DecodeError as error:
            raise _not_a_request(kind.__name__) from error
        response = function(request)
        return response.SerializeToString() if isinstance(response, Message) else _serialized(response)

    return unary(answer)


async def _serialized(response: Awaitable[Message]) -> bytes:
    return (await response).SerializeToString()


def _not_a_request(name: str) -> RpcError:
    return RpcError(Status.INTERNAL, f"the message is no {name}")


class _GenerateCall(CallHandler):
    """One Generate call. The request is all that is waited for, so its end may come later."""

    def __init__(self, call: Call, engine: Engine) -> None:
        self._call = call
        self._engine = engine
        self._generation: Generation | None = None
        self._asked = False

    def message(self, data: bytes) -> None:
        if self._asked:
            self._call.finish(Status.INTERNAL, "Generate takes one request message, and a second one came")
            self.closed()
            return
        self._asked = True
        try:
            self._generation = self._engine.generate(self._call, data)
        except RpcError as error:
            self._call.finish(error.status, error.details)
        except DecodeError:
            refusal = _not_a_request("GenerateRequest")
            self._call.finish(refusal.status, refusal.details)

    def half_close(self) -> None:
        if not self._asked:
            self._call.finish(Status.INTERNAL, "Generate takes one request message, and none came")

    def closed(self) -> None:
        if self._generation is not None:
            self._generation.cancel()


class _Control:
    """The methods that generate nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def abort(self, request: vllm_engine_pb2.AbortRequest) -> vllm_engine_pb2.AbortResponse:
        self._engine.abort(request.request_ids)
        return vllm_engine_pb2.AbortResponse()

    def health_check(self, request: vllm_engine_pb2.HealthCheckRequest) -> vllm_engine_pb2.HealthCheckResponse:
        healthy = self._engine.healthy
        return vllm_engine_pb2.HealthCheckResponse(healthy=healthy, message="Health" if healthy else "Not ready")

    def model_info(self, request: vllm_engine_pb2.GetModelInfoRequest) -> vllm_engine_pb2.GetModelInfoResponse:
        engine = self._engine
        artifacts = engine.artifacts
        folder = str(artifacts.folder)
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=folder,
            is_generation=not engine.spec.embedding_dimensions,
            max_context_length=engine.context_tokens,
            vocab_size=artifacts.vocabulary,
            served_model_name=engine.spec.model,
            tokenizer_path=folder,
            model_type=artifacts.model_type,
            architectures=artifacts.architectures,
            eos_token_ids=artifacts.eos_ids,
            pad_token_id=artifacts.pad_id,
            bos_token_id=artifacts.bos_id,
            max_req_input_len=engine.context_tokens - 1,
            default_sampling_params_json=json.dumps({}),
        )

    def server_info(self, request: vllm_engine_pb2.GetServerInfoRequest) -> vllm_engine_pb2.GetServerInfoResponse:
        # What the Python servicer leaves empty (server_type, uptime, active_requests) is empty here.
        return vllm_engine_pb2.GetServerInfoResponse(
            data_parallel_size=1,
            kv_cache_dtype="auto",
            block_size=self._engine.spec.block_tokens,
            model_dtype="torch.bfloat16",
            max_num_seqs=self._engine.spec.max_running,
            constrained_decoding_start="first_token",
        )

    def loads(self, request: vllm_engine_pb2.GetLoadsRequest) -> vllm_engine_pb2.GetLoadsResponse:
        load = self._engine.load()
        answer = vllm_engine_pb2.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(), version=VERSION, dp_rank_count=1
        )
        if request.HasField("dp_rank") and request.dp_rank != 0:
            return answer
        answer.loads.add(
            num_running_reqs=load.running,
            num_waiting_reqs=load.waiting,
            num_total_reqs=load.running + load.waiting,
            num_used_tokens=load.used_tokens,
            max_total_num_tokens=load.capacity_tokens,
            token_usage=load.usage,
            gen_throughput=load.tokens_per_s,
            cache_hit_rate=load.cache_hit_rate,
            utilization=load.running / self._engine.spec.max_running,
            max_running_requests=self._engine.spec.max_running,
            num_waiting_uncached_tokens=load.waiting_uncached_tokens,
        )
        return answer

    async def tokenizer(self, request: bytes) -> AsyncIterator[bytes]:
        """The archive in pieces, its digest with the last."""
        artifacts = self._engine.artifacts
        archive = artifacts.archive
        for start in range(0, len(archive), TOKENIZER_CHUNK_BYTES):
            end = start + TOKENIZER_CHUNK_BYTES
            digest = artifacts.archive_sha256 if end >= len(archive) else ""
            yield common_pb2.GetTokenizerChunk(data=archive[start:end], sha256=digest).SerializeToString()

    async def flush_cache(self, request: common_pb2.FlushCacheRequest) -> common_pb2.FlushCacheResponse:
        done = await self._engine.flush_cache(request.timeout_s)
        return common_pb2.FlushCacheResponse(
            success=done, message="KV cache flushed" if done else "requests are running"
        )

    def embed(self, request: vllm_engine_pb2.EmbedRequest) -> vllm_engine_pb2.EmbedResponse:
        return self._engine.embed(request)

    def profile(self, request: Message) -> common_pb2.ProfileResponse:
        raise RpcError(Status.INTERNAL, "no profiler is configured")
