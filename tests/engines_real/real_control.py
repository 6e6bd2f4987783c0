"""Questions to a real engine that the gateway has no part in."""

from __future__ import annotations

from real_engine import RealEngine
from smg_grpc_proto.generated import mlx_engine_pb2, mlx_engine_pb2_grpc, vllm_engine_pb2, vllm_engine_pb2_grpc

from extproc.engines.control import open_channel

_TIMEOUT_S = 10.0


async def requests_at_work(engine: RealEngine) -> int:
    """Requests that the engine runs or keeps waiting."""
    async with open_channel(engine.address) as channel:
        if engine.kind.protocol == "mlx":
            stub = mlx_engine_pb2_grpc.MlxEngineStub(channel)
            info = await stub.GetServerInfo(mlx_engine_pb2.GetServerInfoRequest(), timeout=_TIMEOUT_S)
            return info.active_requests
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        answer = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=_TIMEOUT_S)
        return sum(load.num_running_reqs + load.num_waiting_reqs for load in answer.loads)


async def abort(engine: RealEngine, request_id: str) -> None:
    """Make the engine give a request up."""
    async with open_channel(engine.address) as channel:
        if engine.kind.protocol == "mlx":
            stub = mlx_engine_pb2_grpc.MlxEngineStub(channel)
            await stub.Abort(mlx_engine_pb2.AbortRequest(request_ids=[request_id]), timeout=_TIMEOUT_S)
        else:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            await stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=[request_id]), timeout=_TIMEOUT_S)
