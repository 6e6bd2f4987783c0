"""The members of a JSON object where they stand in its text, so that some change and the rest stays as it is."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_SPACES = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_key = msgspec.json.Decoder(str).decode
_encode = msgspec.json.encode


MOST_MEMBERS = 1000


class MembersError(Exception):
    """The text is no JSON object, or one that readers may understand differently."""


class Members(Struct, frozen=True):
    """A JSON object's text, and where the value of each of its members is."""

    text: bytes
    spans: Mapping[str, tuple[int, int]]
    end: int  # of the object: where its last bracket is

    def value(self, name: str) -> bytes | None:
        """The JSON text of a member's value; None where it is absent."""
        span = self.spans.get(name)
        return None if span is None else self.text[span[0] : span[1]]

    def with_values(self, values: Mapping[str, bytes]) -> bytes:
        """The object with other values, as JSON text; members that it does not have come last."""
        pieces: list[bytes] = []
        text, at = self.text, 0
        for (start, end), value in sorted((self.spans[name], values[name]) for name in values if name in self.spans):
            pieces += (text[at:start], value)
            at = end
        new = b",".join([_encode(name) + b":" + value for name, value in values.items() if name not in self.spans])
        if new:
            pieces += (text[at : self.end], b"," if self.spans else b"", new)
            at = self.end
        pieces.append(text[at:])
        return b"".join(pieces)


def members_of(text: bytes) -> Members:
    """Raises MembersError: for a repeated name too, of which some readers take the first and others the last.

    And for more than MOST_MEMBERS, since each takes its time.

    One decode, and then a walk over the members: what their values hold is not looked at.
    """
    try:
        values = _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MembersError(str(error)) from None
    if len(values) > MOST_MEMBERS:
        raise MembersError(f"it has more than {MOST_MEMBERS} fields")
    spans: dict[str, tuple[int, int]] = {}
    at = _skip(text, 0) + 1
    for name, value in values.items():
        at = _skip(text, at)
        key = _KEY.match(text, at)
        if key is None or _key(key[0]) != name:
            raise MembersError("a name stands there twice")
        start = _skip(text, _skip(text, key.end()) + 1)
        view = memoryview(value)
        end = start + len(view)
        if text[start:end] != view:
            raise MembersError(f"the name {name[:64]!r} stands there twice")
        spans[name] = (start, end)
        at = _skip(text, end)
        if text[at : at + 1] == b",":
            at += 1
    at = _skip(text, at)
    if text[at : at + 1] != b"}":
        raise MembersError("a name stands there twice")
    return Members(text, spans, at)


def _skip(text: bytes, at: int) -> int:
    spaces = _SPACES.match(text, at)
    assert spaces is not None  # it matches nothing, too
    return spaces.end()
