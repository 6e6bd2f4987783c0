"""Envoy's own replies (no connection, time-out, another filter's refusal) as errors of the client's dialect."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.ir import ErrorInfo, ErrorKind

_RETRY_AFTER_S = 1.0

_MESSAGES: dict[int, tuple[ErrorKind, str]] = {
    401: (ErrorKind.AUTHENTICATION, "The request was refused: it carries no valid credentials."),
    403: (ErrorKind.PERMISSION, "The request was refused: its credentials do not allow it."),
    408: (ErrorKind.TIMEOUT, "The request took too long to arrive."),
    413: (ErrorKind.TOO_LARGE, "The request is too large."),
    429: (ErrorKind.RATE_LIMIT, "Too many requests."),
    503: (ErrorKind.UNAVAILABLE, "The worker could not be reached. Try again shortly."),
    504: (ErrorKind.TIMEOUT, "The worker did not answer in time."),
}

_RETRIED = (ErrorKind.RATE_LIMIT, ErrorKind.UNAVAILABLE)


def error_of(status: int, headers: Mapping[str, str], details: str) -> ErrorInfo:
    """`details`: Envoy's response code details. Its body is for operators and is not passed on."""
    kind, message = _MESSAGES.get(
        status,
        (ErrorKind.BAD_GATEWAY, "The gateway could not complete the request.")
        if status >= 500
        else (ErrorKind.INVALID_REQUEST, f"The request was refused with status {status}."),
    )
    retry_after = headers.get("retry-after", "")
    return ErrorInfo(
        kind=kind,
        message=message,
        code=details.partition("{")[0] or None,
        retry_after_s=(float(retry_after) if retry_after.isdecimal() else _RETRY_AFTER_S) if kind in _RETRIED else None,
    )
