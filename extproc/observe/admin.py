"""A small HTTP/1.1 server for operators: `/metrics`, `/healthz` (alive), `/readyz` (takes requests), and others' areas.

One request a connection, bounded in size, time and number: nothing that comes here can disturb the traffic.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec

from extproc.observe.exposition import CONTENT_TYPE

_MAX_HEAD_BYTES = 16 * 1024
_MAX_BODY_BYTES = 64 * 1024
_MAX_CONNECTIONS = 32
_TIMEOUT_S = 10.0


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests can be taken, and the reasons, for people."""

    ready: bool
    detail: Mapping[str, object]


class Source(Protocol):
    """What is served."""

    async def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    async def readiness(self) -> Readiness:
        """Whether requests can be taken."""
        ...


class AdminRequest(msgspec.Struct, frozen=True):
    """A request under an area's path."""

    method: str
    path: str  # without the query
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class AdminReply(msgspec.Struct, frozen=True):
    """A JSON answer."""

    status: int
    content: object
    headers: tuple[tuple[str, str], ...] = ()


Area = Callable[[AdminRequest], Awaitable[AdminReply]]
"""What answers under a path."""


class AdminServer:
    """Serves one address."""

    def __init__(self, source: Source, areas: Mapping[str, Area] | None = None) -> None:
        """`areas`: by the first part of their paths, such as `workers`."""
        self._source = source
        self._areas = areas or {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; then `port` is the real one. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_MAX_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the address and every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                with contextlib.suppress(asyncio.IncompleteReadError):  # the client left
                    await self._serve(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = "GET"
        more: tuple[tuple[str, str], ...] = ()
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.LimitOverrunError:
            status, kind, body = 431, "text/plain", b""
        else:
            method, _, rest = head[0].partition(" ")
            target, _, version = rest.partition(" ")
            path = target.partition("?")[0]
            area = self._areas.get(path[1:].partition("/")[0])
            if not version.startswith("HTTP/1."):
                status, kind, body = 400, "text/plain", b"this is no HTTP/1.1 request\n"
            elif area is None:
                status, kind, body = await self._answer(method, path)
            else:
                reply = await self._answer_area(area, method, path, head[1:], reader)
                more = reply.headers
                status, kind = reply.status, "application/json"
                body = msgspec.json.encode(reply.content) + b"\n"
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
            "cache-control: no-store",
            "connection: close",
            *(f"{name}: {value}" for name, value in more),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if method != "HEAD":
            writer.write(body)
        await writer.drain()

    async def _answer_area(
        self, area: Area, method: str, path: str, lines: Sequence[str], reader: asyncio.StreamReader
    ) -> AdminReply:
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                headers.setdefault(name.lower(), value.strip())
        declared = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not declared.isdecimal():
            return AdminReply(411, {"error": "send a content-length"})
        if len(declared) > 9 or int(declared) > _MAX_BODY_BYTES:
            return AdminReply(413, {"error": f"the body is over {_MAX_BODY_BYTES} bytes"})
        body = await reader.readexactly(int(declared))
        return await area(AdminRequest(method, path, headers, body))

    async def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Status, content type, body."""
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b"GET and HEAD only\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE, await self._source.metrics()
        if path == "/healthz":
            return 200, "text/plain", b"alive\n"
        if path == "/readyz":
            readiness = await self._source.readiness()
            return 200 if readiness.ready else 503, "application/json", msgspec.json.encode(readiness) + b"\n"
        known = ["/metrics", "/healthz", "/readyz", *(f"/{name}" for name in self._areas)]
        return 404, "text/plain", f"there are {', '.join(known)}\n".encode()
