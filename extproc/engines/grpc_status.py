"""gRPC status of an engine to the error that a client may see."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from extproc.ir import TRUNCATED, ErrorInfo, ErrorKind

OK = 0

RETRY_AFTER_S = 1.0
"""What a client is told to wait when an engine is full or away: long enough for a queue to move, short for a person."""

_LONGEST_MESSAGE = 4096
"""Characters of an engine's text that a client gets."""

# https://grpc.io/docs/guides/status-codes; the kinds lead to the HTTP statuses that SDKs retry rightly.
_KINDS: dict[int, ErrorKind] = {
    1: ErrorKind.BAD_GATEWAY,  # CANCELLED
    2: ErrorKind.SERVER,  # UNKNOWN
    3: ErrorKind.INVALID_REQUEST,  # INVALID_ARGUMENT
    4: ErrorKind.TIMEOUT,  # DEADLINE_EXCEEDED
    5: ErrorKind.MODEL_NOT_FOUND,  # NOT_FOUND
    6: ErrorKind.CONFLICT,  # ALREADY_EXISTS
    7: ErrorKind.BAD_GATEWAY,  # PERMISSION_DENIED: of the gateway, since clients' credentials do not go to engines
    8: ErrorKind.RATE_LIMIT,  # RESOURCE_EXHAUSTED
    9: ErrorKind.INVALID_REQUEST,  # FAILED_PRECONDITION
    10: ErrorKind.CONFLICT,  # ABORTED
    11: ErrorKind.INVALID_REQUEST,  # OUT_OF_RANGE
    12: ErrorKind.UNIMPLEMENTED,  # UNIMPLEMENTED
    13: ErrorKind.SERVER,  # INTERNAL
    14: ErrorKind.UNAVAILABLE,  # UNAVAILABLE
    15: ErrorKind.SERVER,  # DATA_LOSS
    16: ErrorKind.BAD_GATEWAY,  # UNAUTHENTICATED, likewise
}

_RETRIED = (ErrorKind.RATE_LIMIT, ErrorKind.UNAVAILABLE)


def error_of(trailers: Mapping[str, str]) -> ErrorInfo | None:
    """None for status OK. Trailers without a status are a stream that broke."""
    status = trailers.get("grpc-status")
    if status is None:
        return TRUNCATED
    code = int(status) if status.isdecimal() and len(status) < 4 else 2
    if code == OK:
        return None
    kind = _KINDS.get(code, ErrorKind.SERVER)
    message = unquote(trailers.get("grpc-message", "")) or f"The engine failed with gRPC status {code}."
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + "…"
    return ErrorInfo(
        kind=kind,
        message=message,
        retry_after_s=RETRY_AFTER_S if kind in _RETRIED else None,
    )
