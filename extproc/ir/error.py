"""Errors that clients may see: a closed set."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class ErrorKind(Enum):
    """The closed set of errors that a client may see. Dialects map each to their status and type."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported"  # a field or value that is not supported; `param` names it
    CONTEXT_LENGTH = "context_length"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"  # no such URL
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    RATE_LIMIT = "rate_limit"
    SERVER = "server"
    UNIMPLEMENTED = "unimplemented"
    BAD_GATEWAY = "bad_gateway"  # the engine broke its protocol or its stream
    UNAVAILABLE = "unavailable"  # no worker can serve this now
    TIMEOUT = "timeout"


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """An error for the client, without any dialect's form."""

    kind: ErrorKind
    message: str
    param: str | None = None  # the request's field, as a path such as `messages[0].role`
    code: str | None = None  # a finer code than the kind's own, in OpenAI's vocabulary
    retry_after_s: float | None = None
    should_retry: bool | None = None  # where the client's own rule, by status, would be wrong
    allow: str | None = None  # for METHOD_NOT_ALLOWED: the methods that work


class RequestError(Exception):
    """Raised on the request's way, where it is rejected."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


TRUNCATED = ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="The engine's answer broke off.", code="stream_truncated")
"""An answer ended before it was complete."""

ABORTED = ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="The engine gave the request up.", code="aborted")
"""An engine ended a choice without finishing it."""
