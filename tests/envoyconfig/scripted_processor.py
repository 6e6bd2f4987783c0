"""A processor and engines that do what a test says, and an Envoy between them: the printed configuration at work.

They use grpc.aio and nothing of the gateway, so that these tests show Envoy's behaviour alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict

from extproc.config.schema import Config
from extproc.envoyconfig import names
from extproc.envoyconfig.files import build, write
from extproc.exchange import ext_proc_pb2 as wire

HEALTH_SERVING = b"\x08\x01"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Seen:
    """What the processor saw of one exchange."""

    request_headers: dict[str, str] = field(default_factory=dict)
    request_attributes: dict[str, Any] = field(default_factory=dict)
    request_bytes: int = 0
    request_modes: tuple[int, int] = (0, 0)
    response_headers: dict[str, str] = field(default_factory=dict)
    response_attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Decision:
    """Where a request goes, and as what."""

    pool: str
    destinations: str
    body: bytes = b"\0\0\0\0\0"


@dataclass
class Processor:
    """Routes every request as `decide` says, once its body was read."""

    decide: Callable[[], Decision]
    exchanges: list[Seen] = field(default_factory=list)

    async def process(self, messages: AsyncIterator[wire.ProcessingRequest], _: object) -> AsyncIterator[bytes]:
        seen = Seen()
        self.exchanges.append(seen)
        async for message in messages:
            for reply in self._replies(message, seen):
                yield reply.SerializeToString()

    def _replies(self, message: wire.ProcessingRequest, seen: Seen) -> Iterator[wire.ProcessingResponse]:
        kind = message.WhichOneof("request")
        attributes = {key: value for each in message.attributes.values() for key, value in MessageToDict(each).items()}
        if kind == "request_headers":
            seen.request_headers = _headers(message.request_headers)
            seen.request_attributes = attributes
            seen.request_modes = (message.protocol_config.request_body_mode, message.protocol_config.response_body_mode)
            if message.request_headers.end_of_stream:
                yield from self._forward()
        elif kind == "request_body":
            seen.request_bytes += len(message.request_body.body)
            if message.request_body.end_of_stream:
                yield from self._forward()
        elif kind == "response_headers":
            seen.response_headers = _headers(message.response_headers)
            seen.response_attributes = attributes
            yield wire.ProcessingResponse(response_headers=wire.HeadersResponse())
        elif kind == "response_body":
            piece = wire.StreamedBodyResponse(
                body=message.response_body.body, end_of_stream=message.response_body.end_of_stream
            )
            mutation = wire.BodyMutation(streamed_response=piece)
            common = wire.CommonResponse(body_mutation=mutation)
            yield wire.ProcessingResponse(response_body=wire.BodyResponse(response=common))
        elif kind == "response_trailers":
            yield wire.ProcessingResponse(response_trailers=wire.TrailersResponse())

    def _forward(self) -> Iterator[wire.ProcessingResponse]:
        decision = self.decide()
        sets = {
            names.POOL_HEADER: decision.pool,
            ":path": "/engine.Engine/Generate",
            ":method": "POST",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        mutation = wire.HeaderMutation(
            set_headers=[
                wire.HeaderValueOption(
                    header=wire.HeaderValue(key=key, raw_value=value.encode()),
                    append_action=wire.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
                )
                for key, value in sets.items()
            ],
            remove_headers=["content-length"],
        )
        reply = wire.ProcessingResponse(
            request_headers=wire.HeadersResponse(
                response=wire.CommonResponse(
                    status=wire.CommonResponse.CONTINUE_AND_REPLACE,
                    header_mutation=mutation,
                    body_mutation=wire.BodyMutation(body=decision.body),
                    clear_route_cache=True,
                )
            )
        )
        reply.dynamic_metadata.update({names.DESTINATION_NAMESPACE: {names.DESTINATION_HEADER: decision.destinations}})
        yield reply


def _headers(message: wire.HttpHeaders) -> dict[str, str]:
    return {header.key: (header.raw_value or header.value.encode()).decode() for header in message.headers.headers}


@dataclass
class Engine:
    """Answers every call with its name, or refuses it with a gRPC status."""

    name: str
    refuse: grpc.StatusCode | None = None
    port: int = 0
    received_bytes: list[int] = field(default_factory=list)
    received_headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def generate(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.received_bytes.append(len(request))
        self.received_headers.append({str(key): str(value) for key, value in context.invocation_metadata() or ()})
        if self.refuse is not None:
            await context.abort(self.refuse, "busy")
        return self.name.encode()


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, handlers: dict[str, grpc.RpcMethodHandler]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return self._handlers.get(handler_call_details.method)


@contextlib.asynccontextmanager
async def serve_processor(processor: Processor, address: str) -> AsyncIterator[None]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_insecure_port(address)
    handlers = {
        f"/{names.EXT_PROC_SERVICE}/Process": grpc.stream_stream_rpc_method_handler(
            processor.process, wire.ProcessingRequest.FromString
        ),
        "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(_serving),
    }
    server.add_generic_rpc_handlers((_Handlers(handlers),))
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def _serving(_: bytes, __: object) -> bytes:
    return HEALTH_SERVING


@contextlib.asynccontextmanager
async def serve_engine(engine: Engine) -> AsyncIterator[Engine]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    engine.port = server.add_insecure_port("127.0.0.1:0")
    handler = grpc.unary_unary_rpc_method_handler(engine.generate)
    server.add_generic_rpc_handlers((_Handlers({"/engine.Engine/Generate": handler}),))
    await server.start()
    try:
        yield engine
    finally:
        await server.stop(0)


@dataclass
class RunningEnvoy:
    config: Config
    log: Path

    @property
    def port(self) -> int:
        return self.config.listen.http.port

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        status, content, _ = await asyncio.to_thread(exchange, self.port, method, path, body, headers or {})
        return status, content

    async def until_status(
        self, wanted: int, method: str, path: str, body: bytes = b"", timeout_s: float = 20.0
    ) -> None:
        """Send requests until one is answered with the wanted status."""
        async with asyncio.timeout(timeout_s):
            while True:
                status, _ = await self.request(method, path, body)
                if status == wanted:
                    return
                await asyncio.sleep(0.05)

    async def admin(self, path: str) -> bytes:
        port = self.config.listen.admin.port
        _, content, _ = await asyncio.to_thread(exchange, port, "GET", path, b"", {})
        return content

    async def until(self, path: str, condition: Callable[[bytes], bool], timeout_s: float = 20.0) -> None:
        """Wait until the admin interface's answer at `path` is as wanted."""
        async with asyncio.timeout(timeout_s):
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if condition(await self.admin(path)):
                        return
                await asyncio.sleep(0.05)


def exchange(
    port: int, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def run_envoy(binary: Path, config: Config, log: Path) -> AsyncIterator[RunningEnvoy]:
    """Envoy with the files that we print, once it is ready and finds the processor healthy."""
    write(build(config), config.envoy.directory)
    command = [str(binary), "-c", str(config.envoy.directory / "bootstrap.yaml"), "--disable-hot-restart"]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, "--concurrency", "1", "--log-level", "info", stdout=output, stderr=output
        )
        try:
            running = RunningEnvoy(config, log)
            await running.until("/ready", lambda answer: answer.strip() == b"LIVE")
            await running.until(
                "/clusters", lambda answer: b"processor::" in answer and b"/failed_active_hc" not in answer
            )
            yield running
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
