"""Errors as Ollama's clients read them: `{"error": "…"}` with a status, in a stream as its last line."""

from __future__ import annotations

import math

import msgspec

from extproc.dialects.base import Inbound, Rendered
from extproc.ir import ErrorInfo, ErrorKind

JSON_TYPE = "application/json"

_STATUSES: dict[ErrorKind, int] = {
    ErrorKind.INVALID_REQUEST: 400,
    ErrorKind.UNSUPPORTED: 400,
    ErrorKind.CONTEXT_LENGTH: 400,
    ErrorKind.AUTHENTICATION: 401,
    ErrorKind.PERMISSION: 403,
    ErrorKind.MODEL_NOT_FOUND: 404,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.METHOD_NOT_ALLOWED: 405,
    ErrorKind.CONFLICT: 409,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.RATE_LIMIT: 429,
    ErrorKind.SERVER: 500,
    ErrorKind.UNIMPLEMENTED: 501,
    ErrorKind.BAD_GATEWAY: 502,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.TIMEOUT: 504,
}
_RETRY_AFTER_STATUSES = frozenset((429, 503))


def error_body(error: ErrorInfo) -> bytes:
    """The JSON object."""
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"  # there is no field for it
    return msgspec.json.encode({"error": message})


def error_answer(error: ErrorInfo, inbound: Inbound) -> Rendered:
    """The whole HTTP answer."""
    status = _STATUSES[error.kind]
    headers = [("content-type", JSON_TYPE)]
    if error.retry_after_s is not None and status in _RETRY_AFTER_STATUSES:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    if error.allow is not None:
        headers.append(("allow", error.allow))
    return Rendered(status=status, headers=tuple(headers), body=error_body(error))
