"""A server that speaks OpenAI's dialect over HTTP as engines do, with answers that a test writes byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from free_ports import free_port

EVENTS = "text/event-stream; charset=utf-8"
_APIS = ("chat/completions", "completions", "embeddings")
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


@dataclass
class Said:
    """One answer: its body in pieces, and how it ends."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    content_type: str = EVENTS
    headers: Mapping[str, str] = field(default_factory=dict)
    breaks: bool = False
    """The connection breaks where a body in chunks has not ended."""
    until_closed: bool = False
    """The body ends with the connection, so that nobody can tell a broken one."""
    waits: asyncio.Event | None = None
    """Before the last piece."""


@dataclass
class Asked:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class OpenAIEngine:
    """Answers requests with `answers`, the last one again and again."""

    def __init__(self, *answers: Said, models: Sequence[str] = ("simulated",), key: str = "", prefix: str = "") -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []
        self.closed = asyncio.Event()
        """Somebody broke off an answer."""
        self._models = models
        self._key = key
        self._prefix = prefix
        self._server: asyncio.Server | None = None
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=tls)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, version = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
        body = b""
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            said = Said([b'{"error":"Unauthorized"}'], 401, "application/json")
        elif (method, path) == ("GET", f"{self._prefix}/v1/models"):
            listed = [{"id": model, "object": "model", "max_model_len": 4096} for model in self._models]
            said = Said([json.dumps({"object": "list", "data": listed}).encode()], 200, "application/json")
        elif method == "POST" and path in [f"{self._prefix}/v1/{each}" for each in _APIS]:
            self.asked.append(Asked(path, headers, body))
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        else:
            said = Said([b'{"detail":"Not Found"}'], 404, "application/json")
        return await self._answer(writer, said, chunked=version == "HTTP/1.1" and not said.until_closed)

    async def _answer(self, writer: asyncio.StreamWriter, said: Said, *, chunked: bool) -> bool:
        lines = {"content-type": said.content_type, **said.headers}
        lines |= {"transfer-encoding": "chunked"} if chunked else {"connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {said.status} Said\r\n{head}\r\n".encode())
        try:
            for at, piece in enumerate(said.pieces):
                if said.waits is not None and at == len(said.pieces) - 1:
                    await said.waits.wait()
                if piece:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    await writer.drain()
                    await asyncio.sleep(0)  # a piece is a write of its own
            if said.breaks:
                writer.transport.abort()
                return False
            if chunked:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except ConnectionError:
            self.closed.set()
            return False
        return chunked


@contextlib.asynccontextmanager
async def openai_engines(*engines: OpenAIEngine, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Running."""
    for engine in engines:
        await engine.start(tls)
    try:
        yield
    finally:
        for engine in engines:
            await engine.stop()
