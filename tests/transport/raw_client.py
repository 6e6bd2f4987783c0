"""An HTTP/2 client that does what no decent client does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ngh2 import Configuration, Connection, ConnectionClosed, DataReceived, Event, Role, Setting, StreamClosed
from transport_probe import PATIENCE_S

from extproc.transport.serving import Server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def request_headers(path: str, **changes: str) -> list[tuple[bytes, bytes]]:
    """Those of a gRPC call; `changes` replaces values, with _ for both : and -."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "test",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    replaced = {name: changes.get(name.strip(":").replace("-", "_"), value) for name, value in headers.items()}
    return [(name.encode(), value.encode()) for name, value in replaced.items() if value]


class RawClient:
    """One connection, read only when told to."""

    def __init__(self, server: Server, settings: Mapping[Setting, int] | None = None) -> None:
        self._address = server.address
        self._settings = dict(settings or {})
        self.http = Connection(
            Role.CLIENT, Configuration(peer_max_concurrent_streams=1_000_000, max_send_header_block_length=1 << 20)
        )
        self.events: list[Event] = []
        self.headers: dict[int, dict[bytes, bytes]] = {}
        self.data: dict[int, bytearray] = {}
        self.closed: dict[int, int] = {}  # streams to error codes
        self.goaways = 0

    async def __aenter__(self) -> RawClient:
        await self.connect()
        self.http.initiate_connection(self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port), limit=1 << 16)

    def request(self, path: str, data: bytes = b"", *, end: bool = False, **changes: str) -> int:
        """Queue a request; returns its stream."""
        stream_id = self.http.send_request(request_headers(path, **changes))
        if data or end:
            self.http.send_data(stream_id, data, end_stream=end)
        return stream_id

    async def flush(self) -> None:
        self.writer.write(self.http.data_to_send())
        await self.writer.drain()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read, and answer as HTTP/2 demands, until the condition is true."""
        async with asyncio.timeout(PATIENCE_S):
            await self.flush()
            while not condition():
                data = await self.reader.read(1 << 16)
                assert data, "the server has closed the connection"
                self.receive(data)
                await self.flush()

    async def until_closed_by_server(self) -> None:
        """Read until the server closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while data := await self.reader.read(1 << 16):
                    self.receive(data)
            except ConnectionError:
                pass

    def receive(self, data: bytes) -> None:
        self.http.receive_data(data)
        for event in self.http.events():
            self.events.append(event)
            name = type(event).__name__
            if isinstance(event, DataReceived):
                self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
            elif name in ("ResponseReceived", "TrailersReceived"):
                self.headers.setdefault(event.stream_id, {}).update(event.headers)
            elif isinstance(event, StreamClosed):
                self.closed[event.stream_id] = event.error_code
            elif name == "GoAwayReceived":
                self.goaways += 1
            elif isinstance(event, ConnectionClosed):
                return
