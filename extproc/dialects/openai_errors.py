"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`.

The SDKs retry 408, 409, 429 and everything from 500 by the status alone, wait as `retry-after` says, and obey
`x-should-retry`, so the status is what matters.
"""

from __future__ import annotations

import math

import msgspec

from extproc.dialects.base import Inbound, Rendered
from extproc.ir import ErrorInfo, ErrorKind

JSON_TYPE = "application/json"

# Kind: status, type, and the code where the error names no finer one.
_KINDS: dict[ErrorKind, tuple[int, str, str | None]] = {
    ErrorKind.INVALID_REQUEST: (400, "invalid_request_error", None),
    ErrorKind.UNSUPPORTED: (400, "invalid_request_error", "unsupported_parameter"),
    ErrorKind.CONTEXT_LENGTH: (400, "invalid_request_error", "context_length_exceeded"),
    ErrorKind.AUTHENTICATION: (401, "invalid_request_error", "invalid_api_key"),
    ErrorKind.PERMISSION: (403, "invalid_request_error", None),
    ErrorKind.MODEL_NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    ErrorKind.NOT_FOUND: (404, "invalid_request_error", "unknown_url"),
    ErrorKind.METHOD_NOT_ALLOWED: (405, "invalid_request_error", "method_not_allowed"),
    ErrorKind.CONFLICT: (409, "conflict", None),
    ErrorKind.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
    ErrorKind.RATE_LIMIT: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.SERVER: (500, "server_error", None),
    ErrorKind.UNIMPLEMENTED: (501, "invalid_request_error", None),
    ErrorKind.BAD_GATEWAY: (502, "server_error", None),
    ErrorKind.UNAVAILABLE: (503, "server_error", None),
    ErrorKind.TIMEOUT: (504, "server_error", None),
}
_RETRY_AFTER_STATUSES = frozenset((429, 503))
_LASTING_STATUSES = frozenset((501,))  # the next attempt gets the same answer


def error_body(error: ErrorInfo) -> bytes:
    """The JSON body, which is also what a broken stream says last."""
    _, kind, code = _KINDS[error.kind]
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code or code}}
    )


def render_error(error: ErrorInfo) -> Rendered:
    """The whole HTTP answer."""
    status = _KINDS[error.kind][0]
    headers = [("content-type", JSON_TYPE)]
    if error.retry_after_s is not None and status in _RETRY_AFTER_STATUSES:
        headers.append(("retry-after", str(max(1, math.ceil(error.retry_after_s)))))
    should_retry = error.should_retry
    if should_retry is None and status in _LASTING_STATUSES:
        should_retry = False
    if should_retry is not None:
        headers.append(("x-should-retry", "true" if should_retry else "false"))
    if error.allow is not None:
        headers.append(("allow", error.allow))
    return Rendered(status=status, headers=tuple(headers), body=error_body(error))


def error_answer(error: ErrorInfo, inbound: Inbound) -> Rendered:
    """The same, whatever the request was: the `error` of OpenAI's dialects."""
    return render_error(error)
