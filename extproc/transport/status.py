"""gRPC status codes, how a status travels in HTTP/2 headers, and the error that carries one.

Source: gRPC over HTTP/2 (PROTOCOL-HTTP2.md), sections "Responses" and "Status".
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The codes of google.rpc.Code."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call that ends with a status of its own instead of INTERNAL."""

    def __init__(self, status: int, details: str = "") -> None:
        super().__init__(f"{status}: {details}")
        self.status = status
        self.details = details


_ESCAPED = {byte: b"%%%02X" % byte for byte in range(256) if not 0x20 <= byte <= 0x7E or byte == 0x25}
_DETAILS_LIMIT_BYTES = 4096
"""Escaped details are cut here: clients reject header lists over 8 KiB and would then see no status at all."""


def escape_details(details: str) -> bytes:
    """Percent-encode a status message; the transport does not validate what it puts into headers."""
    raw = details.encode("utf-8", "replace")
    if len(raw) <= _DETAILS_LIMIT_BYTES and raw.isascii() and details.isprintable() and b"%" not in raw:
        return raw
    escaped: list[bytes] = []
    room = _DETAILS_LIMIT_BYTES
    for character in raw.decode("utf-8"):
        encoded = b"".join(_ESCAPED.get(byte) or bytes((byte,)) for byte in character.encode())
        room -= len(encoded)
        if room < 0:
            break
        escaped.append(encoded)
    return b"".join(escaped)
