"""Peers for thousands of streams: an engine that answers when the test says so, and a client on one connection.

Both on ngh2 without anything around it, so that they cost little beside what is tested.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ngh2
from http2_peers import GRPC, OK, chunk, complete
from ngh2 import Configuration, Connection, ErrorCode, Role, Setting

from extproc.transport.framing import frame

CHAT = "/v1/chat/completions"
_ENOUGH_BYTES = 128 << 10
_UNLIMITED = 2**64 - 1
_HEALTHY = frame(b"\x08\x01")  # in grpc.health.v1 and in vLLM's own protocol


def chat(*, stream: bool = True, content: str = "Hi!", **fields: Any) -> bytes:
    """The body of a chat request."""
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "simulated", "messages": messages, "stream": stream, **fields}).encode()


def short_answer(_: int) -> Iterator[bytes]:
    """A token, then the end."""
    yield chunk()
    yield complete()


class _Peer(asyncio.Protocol):
    """One connection; `handle` gets its events."""

    def __init__(self, role: Role, settings: dict[Setting, int]) -> None:
        self._settings = settings
        self.http = Connection(
            role,
            Configuration(stream_reset_rate_limit=(_UNLIMITED, _UNLIMITED), peer_max_concurrent_streams=1 << 20),
        )
        self._paused = False
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.http.initiate_connection(self._settings)
        self.http.set_local_window_size(64 << 20)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self.http.receive_data(data)
        self._take_events()
        self.flush()

    def _take_events(self) -> None:
        for event in self.http.events():
            if isinstance(event, ngh2.ConnectionClosed):
                self._over = True
                self.transport.close()
                return
            self.handle(event)

    def handle(self, event: ngh2.Event) -> None:
        raise NotImplementedError

    def produce(self) -> None:
        """Give the connection more to send, where there is room."""

    def flush(self) -> None:
        while not self._paused and not self._over:
            self.produce()
            data = self.http.data_to_send(65_536)
            self._take_events()  # sending ends streams too
            if not data:
                return
            self.transport.write(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()


class LoadEngine:
    """Speaks vLLM's protocol. Every Generate is held until `release`, and then sends its messages as it is read."""

    def __init__(self, answer: Callable[[int], Iterable[bytes]] = short_answer, *, released: bool = False) -> None:
        """`answer`: the framed messages of the n-th request."""
        self.answer = answer
        self.released = released
        self.begun = 0
        self.open_streams = 0
        self.sent_bytes = 0
        self.address = ""
        self._connections: set[_EngineConnection] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _EngineConnection(self), "127.0.0.1", 0, backlog=1024)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.transport.abort()

    def release(self) -> None:
        """Answer all that is held and all that comes."""
        self.released = True
        for connection in list(self._connections):
            connection.flush()


class _EngineConnection(_Peer):
    def __init__(self, engine: LoadEngine) -> None:
        super().__init__(Role.SERVER, {Setting.MAX_CONCURRENT_STREAMS: 100_000, Setting.INITIAL_WINDOW_SIZE: 1 << 20})
        self._engine = engine
        self._generates: set[int] = set()
        self._left: dict[int, Iterator[bytes]] = {}
        self._started: set[int] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._engine._connections.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._engine._connections.discard(self)
        self._engine.open_streams -= len(self._generates)

    def handle(self, event: ngh2.Event) -> None:
        engine = self._engine
        if isinstance(event, ngh2.RequestReceived):
            stream = event.stream_id
            if dict(event.headers)[b":path"].endswith(b"/Generate"):
                self._generates.add(stream)
                self._left[stream] = iter(engine.answer(engine.begun))
                engine.begun += 1
                engine.open_streams += 1
            else:
                self.http.send_response(stream, list(GRPC))
                self.http.send_data(stream, _HEALTHY)
                self.http.send_trailers(stream, list(OK))
        elif isinstance(event, ngh2.StreamClosed) and event.stream_id in self._generates:
            self._generates.discard(event.stream_id)
            self._started.discard(event.stream_id)
            self._left.pop(event.stream_id, None)
            engine.open_streams -= 1

    def produce(self) -> None:
        engine = self._engine
        if not engine.released:
            return
        for stream, left in list(self._left.items()):
            while self.http.queued_body_size(stream) < _ENOUGH_BYTES:
                data = next(left, None)
                try:
                    if data is None:
                        del self._left[stream]
                        self.http.send_trailers(stream, list(OK))
                        break
                    if stream not in self._started:
                        self._started.add(stream)
                        self.http.send_response(stream, list(GRPC))
                    self.http.send_data(stream, data)
                except ngh2.NGH2Error:  # reset meanwhile
                    self._left.pop(stream, None)
                    break
                engine.sent_bytes += len(data)


class LoadStream:
    """One request of a client's, and what came of it."""

    def __init__(self, number: int, client: LoadClient) -> None:
        self.number = number
        self._client = client
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.received_bytes = 0
        self.ended = False  # in order, not by a reset or a lost connection
        self.over = asyncio.Event()
        self.begun = asyncio.Event()

    def send(self, data: bytes, *, end: bool) -> None:
        """More of the request's body."""
        if not self.over.is_set():
            self._client.http.send_data(self.number, data, end_stream=end)
            self._client.flush()

    def reset(self) -> None:
        """Cancel it."""
        if not self.over.is_set():
            self._client.http.reset_stream(self.number, ErrorCode.CANCEL)
            self._client.flush()


class LoadClient(_Peer):
    """HTTP/2 without TLS. `window_bytes`: what each stream may receive before it is read."""

    def __init__(self, window_bytes: int = 1 << 20, *, keep: bool = True) -> None:
        """`keep`: the bodies of answers, not only how long they are and how they end."""
        super().__init__(Role.CLIENT, {Setting.INITIAL_WINDOW_SIZE: window_bytes})
        self.streams: dict[int, LoadStream] = {}
        self._keep = keep

    @classmethod
    async def connect(cls, port: int, window_bytes: int = 1 << 20, *, keep: bool = True) -> LoadClient:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(window_bytes, keep=keep), "127.0.0.1", port)
        return client

    def post(self, body: bytes | None, *, path: str = CHAT) -> LoadStream:
        """A request; its body comes later where there is none here."""
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.encode()),
            (b":authority", b"gateway"),
            (b"content-type", b"application/json"),
        ]
        number = self.http.send_request(headers)
        stream = self.streams[number] = LoadStream(number, self)
        if body is not None:
            self.http.send_data(number, body, end_stream=True)
        self.flush()
        return stream

    def handle(self, event: ngh2.Event) -> None:
        stream = self.streams.get(getattr(event, "stream_id", 0))
        if stream is None:
            return
        if isinstance(event, ngh2.ResponseReceived):
            stream.headers = dict(event.headers)
            stream.status = int(stream.headers[b":status"])
            stream.ended = event.end_stream
            stream.begun.set()
        elif isinstance(event, ngh2.DataReceived):
            stream.received_bytes += len(event.data)
            if self._keep:
                stream.body += event.data
            else:
                stream.body = (stream.body + event.data)[-1000:]
            stream.ended = event.end_stream
        elif isinstance(event, ngh2.TrailersReceived):
            stream.ended = True
        elif isinstance(event, ngh2.StreamClosed):
            stream.over.set()
            stream.begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        for stream in self.streams.values():
            stream.over.set()
            stream.begun.set()

    def close(self) -> None:
        self.transport.abort()
