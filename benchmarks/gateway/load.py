"""The client: HTTP/1.1 with keep-alive, closed loop, every answer checked, cheap enough for two cores.

Requests are bytes that were made before. Of an answer only its end is looked for while it comes; status and usage are
read when it is complete.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

_USAGE = re.compile(rb'"(prompt|completion)_tokens": ?([0-9]+)')
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: ?([0-9]+)")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: ?chunked")
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class LoadError(Exception):
    """A gateway did not answer as it should; the message shows what it said."""


@dataclass(slots=True)
class LoadResult:
    """What a run of requests gave."""

    prompt_tokens: list[int | None]  # by request; None: not sent, as time was up
    elapsed_s: float = 0.0
    completed: int = field(default=0)


class _Run:
    """What the connections of one run share."""

    def __init__(self, requests: Sequence[bytes], tokens: int, limit_s: float) -> None:
        self.requests = requests
        self.tokens = tokens
        self.next = 0
        self.result = LoadResult([None] * len(requests))
        self.end = time.perf_counter() + limit_s
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open = 0

    def fail(self, message: str) -> None:
        if not self.done.done():
            self.done.set_exception(LoadError(message))


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run = run
        self._pieces: list[bytes] = []
        self._tail = b""
        self._missing = -1  # bytes of a body with a length; -1: none is known
        self._head_read = False
        self._at = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._run.open += 1
        self._send()

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if not self._head_read:
            head = b"".join(self._pieces)
            end = head.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head_read = True
            length = _LENGTH.search(head, 0, end + 2)
            if length:
                self._missing = int(length[1]) - (len(head) - end - 4)
            elif not _CHUNKED.search(head, 0, end + 2):
                self._run.fail(f"neither a length nor chunks: {head[:end]!r}")
                return
        elif self._missing >= 0:
            self._missing -= len(data)
        if self._missing >= 0:
            if self._missing == 0:
                self._complete()
            return
        tail = data[-7:] if len(data) >= 7 else (self._tail + data)[-7:]
        if tail == _LAST_CHUNK:
            self._complete()
        else:
            self._tail = tail

    def connection_lost(self, exc: Exception | None) -> None:
        if self._at >= 0:
            self._run.fail(f"the connection was closed during a request: {exc}")

    def _send(self) -> None:
        run = self._run
        at = run.next
        if at >= len(run.requests) or time.perf_counter() > run.end:
            self._at = -1
            self._transport.close()
            run.open -= 1
            if not run.open and not run.done.done():
                run.done.set_result(None)
            return
        run.next = at + 1
        self._at = at
        self._pieces = []
        self._tail = b""
        self._missing = -1
        self._head_read = False
        self._transport.write(run.requests[at])

    def _complete(self) -> None:
        run = self._run
        answer = b"".join(self._pieces)
        usage = dict(_USAGE.findall(answer))
        if not answer.startswith(b"HTTP/1.1 200") or int(usage.get(b"completion", 0)) != run.tokens:
            run.fail(f"not an answer of {run.tokens} tokens: {answer[:300]!r} … {answer[-300:]!r}")
            return
        run.result.prompt_tokens[self._at] = int(usage[b"prompt"])
        run.result.completed += 1
        self._send()


async def load(port: int, requests: Sequence[bytes], *, connections: int, tokens: int, limit_s: float) -> LoadResult:
    """Send all requests, or as many as go out within `limit_s`. Raises LoadError on the first wrong answer."""
    loop = asyncio.get_running_loop()
    run = _Run(requests, tokens, limit_s)
    started = time.perf_counter()
    transports = []
    try:
        for _ in range(min(connections, len(requests))):
            transport, _ = await loop.create_connection(lambda: _Connection(run), "127.0.0.1", port)
            transports.append(transport)
        try:
            await asyncio.wait_for(run.done, limit_s + 30.0)
        except TimeoutError:
            raise LoadError(f"{run.open} connections still wait for an answer") from None
    finally:
        for transport in transports:
            transport.abort()
    run.result.elapsed_s = time.perf_counter() - started
    return run.result
