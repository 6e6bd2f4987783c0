"""What HTTP engines say when they refuse, as errors that a client may see.

Their bodies differ: `{"error": {"message", "type", "param", "code"}}` (OpenAI's, newer vLLM, llama.cpp, Ollama),
`{"object": "error", "message", …}` (older vLLM, SGLang), `{"detail": …}` (FastAPI) and `{"error": "…"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from extproc.engines.grpc_status import RETRY_AFTER_S
from extproc.ir import ErrorInfo, ErrorKind

_LONGEST_MESSAGE = 4096
_LONGEST_RETRY_AFTER_S = 86_400.0

_KINDS: Mapping[int, ErrorKind] = {
    401: ErrorKind.BAD_GATEWAY,  # of the gateway, since clients' credentials do not go to engines
    402: ErrorKind.BAD_GATEWAY,
    403: ErrorKind.BAD_GATEWAY,
    404: ErrorKind.BAD_GATEWAY,  # unless it is the model that is missing
    405: ErrorKind.BAD_GATEWAY,
    408: ErrorKind.TIMEOUT,
    409: ErrorKind.CONFLICT,
    413: ErrorKind.TOO_LARGE,
    429: ErrorKind.RATE_LIMIT,
    501: ErrorKind.UNIMPLEMENTED,
    502: ErrorKind.BAD_GATEWAY,
    503: ErrorKind.UNAVAILABLE,
    504: ErrorKind.TIMEOUT,
    529: ErrorKind.UNAVAILABLE,
}
_RETRIED = (ErrorKind.RATE_LIMIT, ErrorKind.UNAVAILABLE)
_OUR_KEY = "The engine refused the gateway's own credentials."
_TOO_LONG = (
    "maximum context length",
    "maximum model length",
    "context_length_exceeded",
    "exceed_context_size",
    "exceeds the available context size",
    "longer than the model's context length",
    "input length exceeds the context length",
)
"""As vLLM, SGLang, llama.cpp and Ollama put it."""


def error_of_status(status: int, headers: Mapping[str, str], body: bytes) -> ErrorInfo:
    """`body`: as much as has come. Statuses of success are errors here: a broken protocol."""
    said = _said(body)
    message = _text(said.get("message"))
    code = _text(said.get("code"))
    kind = _KINDS.get(status)
    if kind is None:
        kind = (
            ErrorKind.SERVER if status >= 500 else ErrorKind.INVALID_REQUEST if status >= 400 else ErrorKind.BAD_GATEWAY
        )
    if status in (401, 403):
        return ErrorInfo(kind=kind, message=_OUR_KEY, code="engine_credentials")
    if status == 404 and "model" in message.lower():
        kind = ErrorKind.MODEL_NOT_FOUND
    lowered = f"{message} {code} {_text(said.get('type'))}".lower()
    if status in (400, 413, 422, 500) and any(words in lowered for words in _TOO_LONG):
        return ErrorInfo(
            kind=ErrorKind.CONTEXT_LENGTH,
            message=message or "The prompt is too long for this model.",
            param="messages",
            code="context_length_exceeded",
        )
    return ErrorInfo(
        kind=kind,
        message=message or f"The engine answered with status {status}.",
        param=_text(said.get("param")) or None if kind is ErrorKind.INVALID_REQUEST else None,
        code=code if kind in (ErrorKind.INVALID_REQUEST, ErrorKind.RATE_LIMIT) and code else None,
        retry_after_s=retry_after_s(headers) if kind in _RETRIED else None,
    )


def error_of_event(body: bytes) -> ErrorInfo | None:
    """The error that an event of a stream, or a body with the status 200, tells; None where it tells none."""
    try:
        event = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if not isinstance(event, dict) or not (event.get("error") or event.get("object") == "error"):
        return None
    said = _said(body)
    code = said.get("code", said.get("status"))
    status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 500
    return error_of_status(status, {}, body)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """What the engine asks clients to wait, in seconds; a date is not understood."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "")
        if value.replace(".", "", 1).isdecimal() and len(value) < 12:
            return min(float(value) * unit_s, _LONGEST_RETRY_AFTER_S)
    return RETRY_AFTER_S


def _said(body: bytes) -> dict[str, Any]:
    """The object with the message, whatever the body's form is."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return {}
    error = value.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    detail = value.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        place = detail[0].get("loc")
        path = ".".join([str(step) for step in place if step != "body"]) if isinstance(place, list) else ""
        return {"message": detail[0].get("msg"), "param": path}
    return value if detail is None else {"message": detail}


def _text(value: object) -> str:
    """Text of a bounded length; empty for all else."""
    if not isinstance(value, str):
        return ""
    return value if len(value) <= _LONGEST_MESSAGE else value[:_LONGEST_MESSAGE] + "…"
