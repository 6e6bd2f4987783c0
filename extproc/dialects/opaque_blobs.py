"""Signatures of thinking and encrypted reasoning: whose they are, and how those of other minters travel.

A dialect's own server's blobs pass as they are; all are base64. Every other one begins with a mark that base64 cannot
hold, so that none is ever given to a server that did not make it:

    llm-extproc:own                                the text stands beside it, and nobody needs to verify it
    llm-extproc:text:<base64 of UTF-8>             the text itself, for clients that keep nothing but the blob
    llm-extproc:blob:<base64 of a JSON array>      minter, kind, item id and data of a blob of another server
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal, TypeAlias

import msgspec

from extproc.ir import Opaque

OWN = "llm-extproc:own"

_MARK = "llm-extproc:"
_TEXT = "llm-extproc:text:"
_BLOB = "llm-extproc:blob:"

_Kind: TypeAlias = Literal["signature", "redacted", "encrypted"]
_OPAQUE = msgspec.json.Decoder(tuple[str, _Kind, str | None, str])


class BadBlobError(ValueError):
    """It has our mark, but we did not write it."""


def write_text(text: str) -> str:
    """A blob that holds reasoning itself."""
    return _TEXT + base64.b64encode(text.encode("utf-8", "replace")).decode()


def write_opaque(opaque: Opaque, minter: str) -> str:
    """As clients of the `minter`'s dialect carry it."""
    if opaque.minted_by == minter:
        return opaque.data
    fields = (opaque.minted_by, opaque.kind, opaque.item_id, opaque.data)
    return _BLOB + base64.b64encode(msgspec.json.encode(fields)).decode()


def read_blob(data: str, minter: str, kind: _Kind, item_id: str | None = None) -> Opaque | str | None:
    """What a client of the `minter`'s dialect sends back: a blob, or the text that it holds, or nothing of interest.

    Raises BadBlobError.
    """
    if not data or data == OWN:
        return None
    if not data.startswith(_MARK):
        return Opaque(minter, kind, data, item_id)
    try:
        if data.startswith(_TEXT):
            return base64.b64decode(data[len(_TEXT) :], validate=True).decode()
        if data.startswith(_BLOB):
            whose, kind, item_id, blob = _OPAQUE.decode(base64.b64decode(data[len(_BLOB) :], validate=True))
            if whose != minter:
                return Opaque(whose, kind, blob, item_id)
    except (binascii.Error, UnicodeError, msgspec.DecodeError):
        pass
    raise BadBlobError
