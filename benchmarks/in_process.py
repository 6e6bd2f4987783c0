"""The real gateway without sockets, with DeepSeek's tokenizer: exchanges are driven by messages as Envoy sends them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import model, text
from smg_grpc_proto.generated import vllm_engine_pb2

from extproc.config.schema import Config
from extproc.exchange.exchange import Exchange, HeldBodies
from extproc.exchange.ext_proc_pb2 import (
    BodySendMode,
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProtocolConfiguration,
)
from extproc.gateway.gateway import Gateway
from extproc.gateway.pools import Fleet, build_fleet
from extproc.observe.metrics import Metrics
from extproc.routing.worker import WorkerState
from extproc.simulator.wire import ChunkWriter
from extproc.tokens.model import ModelTokens
from extproc.transport.framing import frame

BUILD = Path(__file__).parent.parent / "build" / "bench"
PIECE_BYTES = 64 * 1024
"""Of a request's body, as Envoy sends it."""

_MODES = ProtocolConfiguration(
    request_body_mode=BodySendMode.FULL_DUPLEX_STREAMED, response_body_mode=BodySendMode.FULL_DUPLEX_STREAMED
)


class InProcess:
    """A gateway with one pool of eight workers that are ready."""

    def __init__(self, tokens: ModelTokens) -> None:
        workers = [f"10.0.0.{number}:50051" for number in range(1, 9)]
        config = Config.model_validate({"pools": [{"name": "main", "models": [model.MODEL], "workers": workers}]})
        self.tokens = tokens
        self.fleet: Fleet = build_fleet(config)
        for worker in self.fleet.workers:
            worker.state = WorkerState.READY
        backend = self.fleet.backends["main"]
        backend.tokens = tokens
        self.metrics = Metrics([model.MODEL], self.fleet.backends)
        self.gateway = Gateway(
            table=self.fleet.table,
            backends=self.fleet.backends,
            metrics=self.metrics,
            body_limit_bytes=config.limits.body_bytes,
            debug_clients=(),
        )
        self.held = HeldBodies(config.limits.held_bytes)

    @classmethod
    async def load(cls) -> InProcess:
        """With the tokenizer, which takes a second."""
        return cls(await ModelTokens.load(model.make(BUILD / "model")))

    def exchange(self) -> Exchange:
        """A new one."""
        return Exchange(self.gateway, self.held)

    async def aclose(self) -> None:
        """End the tokenizer."""
        await self.tokens.aclose()


class Prompts:
    """Real text, new each time."""

    def __init__(self, seed: int = 1) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self._words = text.load(BUILD / f"words-{sys.version_info[0]}.{sys.version_info[1]}.txt")
        self._rng = random.Random(seed)

    def body(self, size_bytes: int, turns: int = 1, *, stream: bool = True) -> bytes:
        """A request of about that size, with its text spread over that many turns."""
        per_turn = max(1, size_bytes // turns - 40)
        messages = [{"role": ("user", "assistant")[at % 2], "content": self._text(per_turn)} for at in range(turns)]
        return json.dumps({"model": model.MODEL, "stream": stream, "messages": messages}, ensure_ascii=False).encode()

    def _text(self, size_bytes: int) -> str:
        words: list[str] = []
        size = 0
        at = self._rng.randrange(len(self._words))
        while size < size_bytes:
            word = self._words[at % len(self._words)]
            words.append(word)
            size += len(word) + 1
            at += 1
        return " ".join(words)


def _headers(fields: dict[str, str]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=name, raw_value=value.encode()) for name, value in fields.items()])


def request(body: bytes, path: str = "/v1/chat/completions") -> list[bytes]:
    """Envoy's messages of a chat request."""
    fields = {
        ":method": "POST",
        ":path": path,
        ":authority": "gateway",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": "0c1f9f3a-6d0c-4f6b-9f0e-2b8a9c1d7e55",
    }
    head = ProcessingRequest(request_headers=HttpHeaders(headers=_headers(fields)), protocol_config=_MODES)
    pieces = [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)]
    return [head.SerializeToString()] + [
        ProcessingRequest(request_body=HttpBody(body=piece, end_of_stream=piece is pieces[-1])).SerializeToString()
        for piece in pieces
    ]


def answer(ids: Sequence[int], prompt_tokens: int) -> list[bytes]:
    """Envoy's messages of an engine's streamed answer, a token each."""
    head = ProcessingRequest(
        response_headers=HttpHeaders(headers=_headers({":status": "200", "content-type": "application/grpc"}))
    )
    writer = ChunkWriter(prompt_tokens, 0, 0)
    pieces = [frame(writer.chunk([token])) for token in ids]
    end = ProcessingRequest(response_trailers=HttpTrailers(trailers=_headers({"grpc-status": "0"})))
    return [
        head.SerializeToString(),
        *(ProcessingRequest(response_body=HttpBody(body=piece)).SerializeToString() for piece in pieces),
        end.SerializeToString(),
    ]


def completion(prompt_tokens: int, tokens: int) -> bytes:
    """Envoy's message of an engine's last word on an answer, before the trailers."""
    complete = vllm_engine_pb2.GenerateComplete(
        finish_reason="stop", prompt_tokens=prompt_tokens, completion_tokens=tokens
    )
    body = frame(vllm_engine_pb2.GenerateResponse(complete=complete).SerializeToString())
    return ProcessingRequest(response_body=HttpBody(body=body)).SerializeToString()
