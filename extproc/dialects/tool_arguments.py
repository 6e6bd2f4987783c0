"""Arguments of tool calls, for dialects that write them as JSON objects where the neutral form has their text.

Models write text that is no object, too. Whole answers wrap it under one key, as Anthropic's documentation advises;
when the client sends it back, it is what it was.
"""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.dialects.json_body import invalid

__all__ = ["INVALID_JSON", "object_of", "text_of"]

INVALID_JSON = "INVALID_JSON"
"""The one key of an object that wraps text which is none."""

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_WRAPPED = msgspec.json.Decoder(dict[str, str])
_WRAPPED_START = b'{"%b"' % INVALID_JSON.encode()


def object_of(arguments: str) -> dict[str, Any]:
    """The object that the model wrote; what is none is wrapped."""
    try:
        return _OBJECT.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {INVALID_JSON: arguments}


def text_of(raw: bytes, path: str) -> str:
    """The text of an object as it stands, or what was wrapped in it. Raises RequestError for what is no object."""
    if raw.startswith(_WRAPPED_START):
        try:
            wrapped = _WRAPPED.decode(raw)
        except msgspec.ValidationError:
            pass
        else:
            if len(wrapped) == 1:
                return wrapped[INVALID_JSON]
    if not raw.startswith(b"{"):
        raise invalid(f"Invalid type for '{path}': expected an object.", path, "invalid_type")
    return raw.decode()
