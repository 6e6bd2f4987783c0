"""Errors as Google's clients read them: `{"error": {"code", "message", "status", "details"}}`.

The SDKs choose the exception, and whether to retry (408, 429, 500, 502, 503, 504), by the status, in a stream by
`code`. Where the stream would be a JSON array, the error stands in one, too.
"""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import parse_qs

import msgspec

from extproc.dialects.base import Inbound, Rendered
from extproc.ir import ErrorInfo, ErrorKind

JSON_TYPE = "application/json"
STREAMS = ":streamGenerateContent"

_EVENTS = "alt=sse"  # all that SDKs send there

_KINDS: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.INVALID_REQUEST: (400, "INVALID_ARGUMENT"),
    ErrorKind.UNSUPPORTED: (400, "INVALID_ARGUMENT"),
    ErrorKind.CONTEXT_LENGTH: (400, "INVALID_ARGUMENT"),
    ErrorKind.AUTHENTICATION: (401, "UNAUTHENTICATED"),
    ErrorKind.PERMISSION: (403, "PERMISSION_DENIED"),
    ErrorKind.MODEL_NOT_FOUND: (404, "NOT_FOUND"),
    ErrorKind.NOT_FOUND: (404, "NOT_FOUND"),
    ErrorKind.METHOD_NOT_ALLOWED: (405, "INVALID_ARGUMENT"),
    ErrorKind.CONFLICT: (409, "ABORTED"),
    ErrorKind.TOO_LARGE: (413, "INVALID_ARGUMENT"),
    ErrorKind.RATE_LIMIT: (429, "RESOURCE_EXHAUSTED"),
    ErrorKind.SERVER: (500, "INTERNAL"),
    ErrorKind.UNIMPLEMENTED: (501, "UNIMPLEMENTED"),
    ErrorKind.BAD_GATEWAY: (502, "UNAVAILABLE"),
    ErrorKind.UNAVAILABLE: (503, "UNAVAILABLE"),
    ErrorKind.TIMEOUT: (504, "DEADLINE_EXCEEDED"),
}
_RETRY_AFTER_STATUSES = frozenset((429, 503))
_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def streams_array(inbound: Inbound) -> bool:
    """Whether the answer to this request comes as a JSON array, piece by piece."""
    if not inbound.path.endswith(STREAMS):
        return False
    if inbound.query == _EVENTS:
        return False
    query = parse_qs(inbound.query)
    return (query.get("alt") or query.get("$alt") or [""])[-1] != "sse"


def status_name(error: ErrorInfo) -> str:
    """Such as `INVALID_ARGUMENT`."""
    return _KINDS[error.kind][1]


def error_body(error: ErrorInfo) -> bytes:
    """The JSON object, which is also what a broken stream says last."""
    status, name = _KINDS[error.kind]
    message = error.message
    details: list[dict[str, Any]] = []
    if error.param is not None:
        if error.param not in message:
            message = f"{error.param}: {message}"
        violation = {"field": error.param, "description": error.message}
        details.append({"@type": _BAD_REQUEST, "fieldViolations": [violation]})
    if error.retry_after_s is not None and status in _RETRY_AFTER_STATUSES:
        details.append({"@type": _RETRY_INFO, "retryDelay": f"{_seconds(error.retry_after_s)}s"})
    said: dict[str, Any] = {"code": status, "message": message, "status": name}
    if details:
        said["details"] = details
    return msgspec.json.encode({"error": said})


def error_answer(error: ErrorInfo, inbound: Inbound) -> Rendered:
    """The whole HTTP answer."""
    status = _KINDS[error.kind][0]
    headers = [("content-type", JSON_TYPE)]
    if error.retry_after_s is not None and status in _RETRY_AFTER_STATUSES:
        headers.append(("retry-after", str(_seconds(error.retry_after_s))))
    if error.allow is not None:
        headers.append(("allow", error.allow))
    body = error_body(error)
    return Rendered(status=status, headers=tuple(headers), body=b"[%b]" % body if streams_array(inbound) else body)


def _seconds(value: float) -> int:
    return max(1, math.ceil(value))
