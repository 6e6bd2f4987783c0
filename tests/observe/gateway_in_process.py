"""The gateway's application with one pool that is ready, without sockets: exchanges are driven by messages."""

from __future__ import annotations

import json
from pathlib import Path

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.config.schema import Config
from extproc.dialects.json_body import BodyLimits
from extproc.gateway.gateway import Gateway
from extproc.gateway.pools import Fleet, build_fleet
from extproc.observe.metrics import Metrics
from extproc.routing.worker import WorkerState
from extproc.simulator.spec import OWN_MODEL
from extproc.tokens.model import ModelTokens
from extproc.transport.framing import frame

CHAT = "/v1/chat/completions"
WORKERS = ("10.0.0.1:1", "10.0.0.2:1")
CONFIG = Config.model_validate({"pools": [{"name": "main", "models": ["m"], "workers": list(WORKERS)}]})


async def load_tokens() -> ModelTokens:
    """The simulator's own small model."""
    return await ModelTokens.load(Path(OWN_MODEL))


def build_gateway(tokens: ModelTokens) -> tuple[Gateway, Metrics, Fleet]:
    """A gateway that has counted nothing yet."""
    fleet = build_fleet(CONFIG)
    for worker in fleet.workers:
        worker.state = WorkerState.READY
    fleet.backends["main"].tokens = tokens
    metrics = Metrics(["m"], fleet.backends)
    gateway = Gateway(
        body_limits=BodyLimits(max_depth=64, max_messages=100),
        table=fleet.table,
        backends=fleet.backends,
        metrics=metrics,
        body_limit_bytes=4096,
        debug_clients=(),
    )
    return gateway, metrics, fleet


def chat_body(*, stream: bool, model: str = "m", text: str = "Hello!", **fields: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": model, "messages": messages, "stream": stream, **fields}).encode()


def chunk(ids: list[int]) -> bytes:
    """An engine's message with new tokens."""
    part = pb.GenerateStreamChunk(token_ids=ids, prompt_tokens=9, completion_tokens=len(ids), cached_tokens=4)
    return frame(pb.GenerateResponse(chunk=part).SerializeToString())


def complete(ids: list[int], completion_tokens: int) -> bytes:
    """An engine's last message."""
    whole = pb.GenerateComplete(
        output_ids=ids, finish_reason="stop", prompt_tokens=9, completion_tokens=completion_tokens, cached_tokens=4
    )
    return frame(pb.GenerateResponse(complete=whole).SerializeToString())
