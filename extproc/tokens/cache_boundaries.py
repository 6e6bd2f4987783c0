"""Where a text may be cut so that the ids of its parts, one after another, are the ids of the whole.

encode(a + b) = encode(a) + encode(b) holds where b begins with an added token that the tokenizer finds wherever it
stands: the libraries look for added tokens first, and encode what is between them piece by piece. `isolated` finds
such tokens by rule, in the tokenizer's file; `inspection` tries each of them beside. Of these, a template's messages
begin with few: `choose` takes them from a rendered conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from extproc.token_ids import TokenIds

__all__ = ["MAX_MARKERS", "Boundaries", "Parts", "choose", "isolated"]

_MAX_PARTS = 1024  # of one text; what follows is one part, so that no text costs more than about a millisecond here
MAX_MARKERS = 8
_LONGEST = 128  # characters of a marker
_ALL_ZERO = bytes(_MAX_PARTS + 1)


def isolated(spec: Mapping[str, Any]) -> list[str]:
    """Added tokens of a tokenizer.json that are found wherever their text stands, whatever is beside it."""
    tokens = [token for token in spec.get("added_tokens") or () if token.get("content")]
    contents = [token["content"] for token in tokens]
    every = set(contents)
    joined = "\0".join(contents)
    normalizer = spec.get("normalizer")
    normalizes = normalizer is not None and normalizer.get("normalizers") != []
    found = []
    for token in tokens:
        content = token["content"]
        if token.get("single_word") or token.get("lstrip") or token.get("rstrip"):
            continue
        if len(content) > _LONGEST or content != content.strip() or (token.get("normalized") and normalizes):
            continue
        if joined.count(content) > 1 or not every.isdisjoint(_fragments(content)):
            continue  # one would be taken for a part of the other
        if any(content.startswith(end) for end in _ends(contents, content[0])):
            continue  # another one, or this one again, could begin before it and end inside it
        found.append(content)
    return found


def _fragments(content: str) -> Iterator[str]:
    """Every proper part of it."""
    length = len(content)
    for start in range(length):
        for end in range(start + 1, length + (start > 0)):
            yield content[start:end]


def _ends(contents: Sequence[str], first: str) -> Iterator[str]:
    """Proper ends of the tokens that begin with the character `first`."""
    for content in contents:
        at = content.find(first, 1)
        while at > 0:
            yield content[at:]
            at = content.find(first, at + 1)


def choose(sample: str, messages: Sequence[str], usable: Iterable[str]) -> tuple[str, ...]:
    """Of the `usable` tokens those that stand last before each message's content in a rendered conversation."""
    present = [token for token in usable if token in sample]
    chosen: dict[str, None] = {}
    at = 0
    for message in messages:
        start = sample.find(message, at)
        if start < 0:
            continue
        before = [(place, token) for token in present if (place := sample.rfind(token, at, start)) >= 0]
        if before:
            chosen[max(before)[1]] = None
        at = start + len(message)
    return tuple(chosen)[:MAX_MARKERS]


class Parts(Struct, gc=False):
    """A text cut in front of markers. The markers themselves are left out."""

    texts: Sequence[str]  # the text before the first marker, which may be empty, then what follows each
    kinds: Sequence[int]  # which marker stands before each text; 0 before the first


class Boundaries:
    """Cuts texts in front of the given tokens, and the ids of such texts at the same places."""

    __slots__ = ("_first", "_kinds", "_lengths", "_marker_ids", "_pattern")

    def __init__(self, markers: Mapping[str, int]) -> None:
        """`markers`: at most MAX_MARKERS added tokens with their ids; none for texts that stay whole."""
        self._first = next(iter(markers), "")
        self._pattern = re.compile(f"({'|'.join(map(re.escape, markers))})") if len(markers) > 1 else None
        self._kinds = {marker: kind for kind, marker in enumerate(markers)}
        self._lengths = tuple(map(len, markers))
        self._marker_ids = tuple(TokenIds.of([token_id]).varints for token_id in markers.values())

    def split(self, text: str) -> Parts:
        """Hot: 0.3 us for 1,000 characters. The search is for whole markers, since short texts are found slower."""
        pattern = self._pattern
        if pattern is None:
            texts = text.split(self._first, _MAX_PARTS) if self._first else [text]
            return Parts(texts, _ALL_ZERO[: len(texts)])
        pieces = pattern.split(text, _MAX_PARTS)
        kinds = self._kinds
        return Parts(pieces[::2], [0, *[kinds[marker] for marker in pieces[1::2]]])

    def cut(self, varints: bytes, parts: Parts, known: int) -> list[bytes] | None:
        """The ids of the parts from `known` on, which were encoded together; None without the parts' markers."""
        markers = self._marker_ids
        kinds = parts.kinds[known:]
        at = 0  # where the part begins
        behind = 0  # and where its text does, behind its marker
        if known:
            behind = len(markers[kinds[0]])
            if not varints.startswith(markers[kinds[0]]):
                return None
        pieces: list[bytes] = []
        for kind in kinds[1:]:
            marker = markers[kind]
            # Of an id's bytes only the last is below 128, so nothing is found between two ids.
            following = varints.find(marker, behind)
            if following < 0:
                return None
            pieces.append(varints[at:following])
            at = following
            behind = following + len(marker)
        pieces.append(varints[at:])
        return pieces

    def lengths(self, parts: Parts, known: int) -> list[int]:
        """Characters of the parts from `known` on, their markers included."""
        marker_lengths = self._lengths
        lengths = (
            [
                len(text) + marker_lengths[kind]
                for text, kind in zip(parts.texts[known:], parts.kinds[known:], strict=True)
            ]
            if marker_lengths
            else [len(text) for text in parts.texts[known:]]
        )
        if not known and marker_lengths:
            lengths[0] -= marker_lengths[0]
        return lengths
