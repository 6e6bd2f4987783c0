"""HTTP/2 peers that do what well-behaved libraries do not: an engine with a script of frames, a client with trailers.

On `h2`, which is another implementation than the one under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.transport.framing import frame

Headers = Sequence[tuple[bytes, bytes]]

GRPC: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK: Headers = ((b"grpc-status", b"0"),)


def chunk(ids: Sequence[int] = (5,), index: int = 0) -> bytes:
    """A framed piece of a streamed answer."""
    message = pb.GenerateStreamChunk(token_ids=ids, index=index, completion_tokens=len(ids), prompt_tokens=9)
    return frame(pb.GenerateResponse(chunk=message).SerializeToString())


def complete(ids: Sequence[int] = (5,), index: int = 0) -> bytes:
    """A framed end of a choice."""
    message = pb.GenerateComplete(
        output_ids=ids, index=index, completion_tokens=len(ids), prompt_tokens=9, finish_reason="stop"
    )
    return frame(pb.GenerateResponse(complete=message).SerializeToString())


@dataclass
class Script:
    """What an engine sends for each Generate. Without `trailers` and `reset` the stream stays open."""

    headers: Headers = GRPC
    data: Sequence[bytes] = ()
    trailers: Headers | None = None
    reset: bool = False


@dataclass
class ScriptedEngine:
    """Healthy, and to every Generate it sends its script. `requests`: headers and body of each."""

    script: Script = field(default_factory=Script)
    requests: list[tuple[dict[bytes, bytes], bytes]] = field(default_factory=list)
    open_streams: int = 0
    address: str = ""
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False, header_encoding=False))
        http.initiate_connection()
        heads: dict[int, dict[bytes, bytes]] = {}
        bodies: dict[int, bytes] = {}
        generating: set[int] = set()
        try:
            writer.write(http.data_to_send())
            while data := await reader.read(65536):
                for event in http.receive_data(data):
                    if isinstance(event, RequestReceived):
                        heads[event.stream_id] = dict(event.headers)
                        bodies[event.stream_id] = b""
                    elif isinstance(event, DataReceived):
                        http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                        bodies[event.stream_id] += event.data
                    elif isinstance(event, StreamEnded):
                        self._answer(http, event.stream_id, heads[event.stream_id], bodies[event.stream_id], generating)
                    elif isinstance(event, StreamReset) and event.stream_id in generating:
                        generating.discard(event.stream_id)
                        self.open_streams -= 1
                writer.write(http.data_to_send())
        except ConnectionError:
            pass
        finally:
            self.open_streams -= len(generating)
            writer.close()

    def _answer(
        self, http: H2Connection, stream: int, head: dict[bytes, bytes], body: bytes, generating: set[int]
    ) -> None:
        path = head[b":path"]
        if path.endswith((b"/Check", b"/HealthCheck")):  # both answers begin with a field 1 that is 1
            http.send_headers(stream, list(GRPC))
            http.send_data(stream, frame(b"\x08\x01"))
            http.send_headers(stream, list(OK), end_stream=True)
            return
        if not path.endswith(b"/Generate"):
            http.send_headers(stream, [*GRPC, (b"grpc-status", b"12")], end_stream=True)
            return
        self.requests.append((head, body))
        script = self.script
        alone = not script.data and script.trailers is not None and not script.trailers
        http.send_headers(stream, list(script.headers), end_stream=alone)
        for data in script.data:
            http.send_data(stream, data)
        if script.reset:
            http.reset_stream(stream, 2)
        elif script.trailers:
            http.send_headers(stream, list(script.trailers), end_stream=True)
        elif not alone:
            generating.add(stream)
            self.open_streams += 1


@dataclass
class Http2Answer:
    """What a client got."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def post_with_trailers(port: int, path: str, body: bytes, trailers: Headers) -> Http2Answer:
    """A request whose end is trailers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    http = H2Connection(H2Configuration(client_side=True, header_encoding=False))
    http.initiate_connection()
    stream = http.get_next_available_stream_id()
    http.send_headers(
        stream,
        [(b":method", b"POST"), (b":path", path.encode()), (b":scheme", b"http"), (b":authority", b"gateway")],
    )
    headers: dict[bytes, bytes] = {}
    got = b""
    ended = False
    sent = 0
    try:
        while not ended:
            window = min(http.local_flow_control_window(stream), http.max_outbound_frame_size)
            while sent < len(body) and window > 0:
                http.send_data(stream, body[sent : sent + window])
                sent = min(len(body), sent + window)
                if sent == len(body):
                    http.send_headers(stream, list(trailers), end_stream=True)
                window = min(http.local_flow_control_window(stream), http.max_outbound_frame_size)
            writer.write(http.data_to_send())
            data = await asyncio.wait_for(reader.read(65536), 30.0)
            assert data, "the connection ended"
            for event in http.receive_data(data):
                if isinstance(event, ResponseReceived):
                    headers = dict(event.headers)
                elif isinstance(event, DataReceived):
                    http.acknowledge_received_data(event.flow_controlled_length, stream)
                    got += event.data
                elif isinstance(event, TrailersReceived):
                    headers |= dict(event.headers)
                elif isinstance(event, StreamEnded | StreamReset):
                    ended = True
    finally:
        writer.close()
    return Http2Answer(int(headers[b":status"]), headers, got)
