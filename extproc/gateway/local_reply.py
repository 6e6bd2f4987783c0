"""What answers in an engine's place, as errors for the client: Envoy itself (no connection, time-out, another filter's
refusal), or something between Envoy and the engine that speaks no gRPC."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.ir import ErrorInfo, ErrorKind

_RETRY_AFTER_S = 1.0
_RETRY_AFTER_DIGITS = 5  # a day, about; more is nonsense

_UPSTREAM_PASSES = (429, 503, 504)

_MESSAGES: dict[int, tuple[ErrorKind, str]] = {
    401: (ErrorKind.AUTHENTICATION, "The request was refused: it carries no valid credentials."),
    403: (ErrorKind.PERMISSION, "The request was refused: its credentials do not allow it."),
    408: (ErrorKind.TIMEOUT, "The request took too long to arrive."),
    413: (ErrorKind.TOO_LARGE, "The request is too large."),
    429: (ErrorKind.RATE_LIMIT, "Too many requests."),
    503: (ErrorKind.UNAVAILABLE, "The worker could not be reached. Try again shortly."),
    504: (ErrorKind.TIMEOUT, "The worker did not answer in time."),
}

_WORKER_FAULTS = (
    "upstream_reset_before_response_started",
    "upstream_reset_after_response_started",
    "upstream_response_timeout",
    "upstream_per_try_timeout",
)

_RETRIED = (ErrorKind.RATE_LIMIT, ErrorKind.UNAVAILABLE)


def error_of(status: int, headers: Mapping[str, str], details: str) -> ErrorInfo:
    """`details`: Envoy's response code details. Its body is for operators and is not passed on."""
    kind, message = _MESSAGES.get(
        status,
        (ErrorKind.BAD_GATEWAY, "The gateway could not complete the request.")
        if status >= 500
        else (ErrorKind.INVALID_REQUEST, f"The request was refused with status {status}."),
    )
    return ErrorInfo(
        kind=kind,
        message=message,
        code=details.partition("{")[0] or None,
        retry_after_s=_retry_after(headers) if kind in _RETRIED else None,
    )


def blames_worker(details: str) -> bool:
    """Whether Envoy answers itself because a worker could not be reached, broke off or was too slow.

    `details`: Envoy's response code details. Its own limits ("overflow") and other filters' refusals are no fault.
    """
    return details.startswith(_WORKER_FAULTS) and "overflow" not in details


def error_of_upstream(status: int, headers: Mapping[str, str]) -> ErrorInfo:
    """A status that is not the engine's: the client can do nothing about it but try again where that may help."""
    if status in _UPSTREAM_PASSES:
        return error_of(status, headers, "not_a_grpc_answer")
    return ErrorInfo(
        kind=ErrorKind.BAD_GATEWAY,
        message="The worker answered in a protocol that is not its own.",
        code="not_a_grpc_answer",
    )


def _retry_after(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after", "")
    return float(value) if value.isdecimal() and len(value) <= _RETRY_AFTER_DIGITS else _RETRY_AFTER_S
