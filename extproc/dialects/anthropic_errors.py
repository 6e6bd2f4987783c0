"""Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"}, "request_id"}`.

The SDKs choose the exception, and whether to retry (408, 409, 429 and everything from 500), by the status alone. The
type is one of a closed set, and the id is also in the header `request-id`.
"""

from __future__ import annotations

import math

import msgspec

from extproc.dialects.base import Inbound, Rendered
from extproc.ir import ErrorInfo, ErrorKind

JSON_TYPE = "application/json"

_KINDS: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.INVALID_REQUEST: (400, "invalid_request_error"),
    ErrorKind.UNSUPPORTED: (400, "invalid_request_error"),
    ErrorKind.CONTEXT_LENGTH: (400, "invalid_request_error"),
    ErrorKind.AUTHENTICATION: (401, "authentication_error"),
    ErrorKind.PERMISSION: (403, "permission_error"),
    ErrorKind.MODEL_NOT_FOUND: (404, "not_found_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.METHOD_NOT_ALLOWED: (405, "invalid_request_error"),
    ErrorKind.CONFLICT: (409, "conflict_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.RATE_LIMIT: (429, "rate_limit_error"),
    ErrorKind.SERVER: (500, "api_error"),
    ErrorKind.UNIMPLEMENTED: (501, "api_error"),
    ErrorKind.BAD_GATEWAY: (502, "api_error"),
    ErrorKind.UNAVAILABLE: (529, "overloaded_error"),
    ErrorKind.TIMEOUT: (504, "timeout_error"),
}
_RETRY_AFTER_STATUSES = frozenset((429, 529))
_LASTING_STATUSES = frozenset((501,))  # the next attempt gets the same answer
_TOO_LONG = "prompt is too long"  # what agents look for, to shorten the conversation


def request_id_of(inbound: Inbound) -> str | None:
    """What `request-id` will say in the answer."""
    return inbound.headers.get("x-request-id") or None


def error_body(error: ErrorInfo, request_id: str | None) -> bytes:
    """The JSON body, which is also what a broken stream says last."""
    message = error.message
    if error.kind is ErrorKind.CONTEXT_LENGTH and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"  # there is no field for it
    return msgspec.json.encode(
        {"type": "error", "error": {"type": _KINDS[error.kind][1], "message": message}, "request_id": request_id}
    )


def error_answer(error: ErrorInfo, inbound: Inbound) -> Rendered:
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
    return Rendered(status=status, headers=tuple(headers), body=error_body(error, request_id_of(inbound)))
