"""Signatures of thinking: whose they are, and how those of other minters travel through Anthropic's clients.

Anthropic's own signatures are base64 and pass as they are. Every other one begins with a mark that base64 cannot hold,
so that none is ever given to a server that did not make it:

    llm-extproc:own                                the text stands beside it, and nobody needs to verify it
    llm-extproc:text:<base64 of UTF-8>             the text itself, where the client did not want to see it
    llm-extproc:blob:<base64 of a JSON array>      minter, kind, item id and data of a blob of another server
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

import msgspec

from extproc.ir import Opaque, Reasoning

OWN = "llm-extproc:own"

_MARK = "llm-extproc:"
_TEXT = "llm-extproc:text:"
_BLOB = "llm-extproc:blob:"
_ANTHROPIC = "anthropic"

_OPAQUE = msgspec.json.Decoder(tuple[str, Literal["signature", "redacted", "encrypted"], str | None, str])


class BadSignatureError(ValueError):
    """It has our mark, but we did not write it."""


def of_hidden_text(text: str) -> str:
    """A signature that holds the thinking."""
    return _TEXT + base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def of_opaque(opaque: Opaque) -> str:
    """A signature that holds a blob."""
    if opaque.minted_by == _ANTHROPIC:
        return opaque.data
    fields = (opaque.minted_by, opaque.kind, opaque.item_id, opaque.data)
    return _BLOB + base64.b64encode(msgspec.json.encode(fields)).decode()


def thinking_of(text: str, signature: str) -> Reasoning:
    """A thinking block that a client sends back. Raises BadSignatureError."""
    if not signature or signature == OWN:
        return Reasoning(text)
    if signature.startswith(_TEXT):
        try:
            return Reasoning(base64.b64decode(signature[len(_TEXT) :], validate=True).decode())
        except (binascii.Error, UnicodeError):
            raise BadSignatureError from None
    return Reasoning(text, opaque=(_opaque(signature, redacted=False),))


def redacted_of(data: str) -> Reasoning:
    """A redacted block that a client sends back. Raises BadSignatureError."""
    return Reasoning(opaque=(_opaque(data, redacted=True),))


def _opaque(data: str, *, redacted: bool) -> Opaque:
    if not data.startswith(_MARK):
        return Opaque(_ANTHROPIC, "redacted" if redacted else "signature", data)
    if not data.startswith(_BLOB):
        raise BadSignatureError
    try:
        minter, kind, item_id, blob = _OPAQUE.decode(base64.b64decode(data[len(_BLOB) :], validate=True))
    except (binascii.Error, msgspec.DecodeError):
        raise BadSignatureError from None
    if minter == _ANTHROPIC:
        raise BadSignatureError
    return Opaque(minter, kind, blob, item_id)
