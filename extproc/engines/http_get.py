"""GET over HTTP/1, bounded in time and size: for health and metrics of engines, a few calls a second."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from msgspec import Struct

from extproc.config.address import HostPort


class HttpGetError(Exception):
    """There was no answer of the kind that was asked for; the text says what there was."""


class HttpAccess(Struct, frozen=True):
    """What a server wants beside its address."""

    host: str | None = None  # header; the address without it
    headers: Sequence[tuple[str, str]] = ()
    tls: ssl.SSLContext | None = None
    server_name: str | None = None  # of its certificate


_PLAIN = HttpAccess()


async def http_get(
    address: HostPort, path: str, *, timeout_s: float, limit_bytes: int, access: HttpAccess = _PLAIN
) -> tuple[int, bytes]:
    """Status and body. Raises HttpGetError."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(address, path, limit_bytes, access)
    except TimeoutError:
        raise HttpGetError(f"http://{address}{path} did not answer within {timeout_s:g} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise HttpGetError(f"http://{address}{path}: {error}") from error


async def _get(address: HostPort, path: str, limit_bytes: int, access: HttpAccess) -> tuple[int, bytes]:
    tls = access.tls
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=tls, server_hostname=access.server_name if tls is not None else None
    )
    try:
        # HTTP/1.0, so that the answer is neither in chunks nor followed by another.
        fields = [("host", access.host or str(address)), ("accept", "*/*"), ("connection", "close"), *access.headers]
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        writer.write(f"GET {path} HTTP/1.0\r\n{lines}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        version, _, rest = head[0].partition(" ")
        status = rest.partition(" ")[0]
        if not version.startswith("HTTP/1.") or not status.isdecimal() or len(status) != 3:
            raise ValueError("this is no HTTP answer")
        answered = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
        declared = answered.get("content-length", "").strip()
        length = int(declared) if declared.isdecimal() and len(declared) < 20 else None
        if length is not None and length > limit_bytes:
            raise ValueError(f"the answer is over {limit_bytes} bytes")
        if length is not None:
            return int(status), await reader.readexactly(length)
        body = bytearray()
        while piece := await reader.read(1 << 16):
            body += piece
            if len(body) > limit_bytes:
                raise ValueError(f"the answer is over {limit_bytes} bytes")
        return int(status), bytes(body)
    finally:
        writer.transport.abort()
