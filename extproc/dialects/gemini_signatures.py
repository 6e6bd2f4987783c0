"""Thought signatures: whose they are, and how those that are not Google's travel.

A signature is base64 to Google's clients, which decode and encode it. Ours are marked within (see opaque_blobs.py).
"""

from __future__ import annotations

import base64
import binascii

from extproc.dialects.opaque_blobs import BadBlobError, read_blob, write_opaque, write_text
from extproc.ir import Opaque

_MARK = b"llm-extproc:"
_NOTHING = frozenset((b"skip_thought_signature_validator", b"context_engineering_is_the_way_to_go"))
"""What Google's documentation says to send where there is no signature."""
_STANDARD = str.maketrans("-_", "+/")


def text_signature(text: str) -> str:
    """One that holds thoughts which the client does not want to see."""
    return _encoded(write_text(text))


def opaque_signature(opaque: Opaque) -> str:
    """One that holds any server's blob; Google's are as they came."""
    return opaque.data if opaque.minted_by == "google" else _encoded(write_opaque(opaque, "google"))


def read_signature(data: str) -> Opaque | str | None:
    """What a client sends back: a blob, or the thoughts that it holds, or nothing of interest. Raises BadBlobError."""
    if not data:
        return None
    try:
        # Either alphabet, with padding or without.
        blob = base64.b64decode(
            data.rstrip("=").translate(_STANDARD) + "=" * (-len(data.rstrip("=")) % 4), validate=True
        )
    except (binascii.Error, ValueError):
        if data.encode("utf-8", "replace") in _NOTHING:
            return None
        raise BadBlobError from None
    if blob.startswith(_MARK):
        return read_blob(blob.decode("latin-1"), "google", "signature")
    return None if blob in _NOTHING else Opaque("google", "signature", data)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
