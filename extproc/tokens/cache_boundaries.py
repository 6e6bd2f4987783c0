"""Where a text may be cut so that the ids of its parts, one after another, are the ids of the whole.

encode(a + b) = encode(a) + encode(b) holds where b begins with an added token that the tokenizer finds wherever it
stands: the libraries look for added tokens first, and encode what is between them piece by piece. `isolated` finds
such tokens by rule, in the tokenizer's file; `inspection` tries each of them beside. Of these, a template's messages
begin with few: `choose` takes them from a rendered conversation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from extproc.token_ids import TokenIds

__all__ = ["Boundaries", "choose", "isolated"]

_MAX_PARTS = 1024  # of one text; what follows is one part, so that no text costs more than about a millisecond here
_MAX_MARKERS = 8
_LEAST_PREFIX = 2
_LONGEST = 128  # characters of a marker


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
    """Of the `usable` tokens those that stand last before each message's content in a rendered conversation.

    Several only where they begin alike, so that one search finds all of them; else the first message's alone.
    """
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
    markers = tuple(chosen)
    if len(markers) > _MAX_MARKERS or len(_common_start(markers)) < _LEAST_PREFIX:
        return markers[:1]
    return markers


def _common_start(texts: Sequence[str]) -> str:
    if not texts:
        return ""
    least, most = min(texts), max(texts)
    at = 0
    while at < len(least) and least[at] == most[at]:
        at += 1
    return least[:at]


class Boundaries:
    """Cuts texts in front of the given tokens, and the ids of such texts at the same places."""

    __slots__ = ("_marker_ids", "_prefix", "_tails")

    def __init__(self, markers: Mapping[str, int]) -> None:
        """`markers`: added tokens with their ids; none for texts that stay whole."""
        self._prefix = _common_start(list(markers))
        self._tails = tuple(marker[len(self._prefix) :] for marker in markers)
        self._marker_ids = tuple(TokenIds.of([token_id]).varints for token_id in markers.values())

    def split(self, text: str) -> list[str]:
        """The text before the first marker, which may be empty, then what follows each. Hot.

        What all markers begin with is left out at the start of each part but the first.
        """
        prefix = self._prefix
        if not prefix:
            return [text]
        parts = text.split(prefix, _MAX_PARTS)
        tails = self._tails
        if len(tails) == 1:
            return parts
        for part in parts[1:]:
            if not part.startswith(tails):
                return self._merged(parts)
        return parts

    def _merged(self, parts: list[str]) -> list[str]:
        """Where the text has what all markers begin with, but no marker, it is not cut."""
        merged = [[parts[0]]]
        for part in parts[1:]:
            if part.startswith(self._tails):
                merged.append([part])
            else:
                merged[-1].append(part)
        return [self._prefix.join(group) for group in merged]

    def cut(self, varints: bytes, parts: Sequence[str], *, first: bool) -> list[bytes] | None:
        """The ids of parts that were encoded together; None if they do not have the parts' markers.

        `first`: the first of the parts is the text's first, which has no marker.
        """
        pieces: list[bytes] = []
        at = 0
        if not first and not varints.startswith(self._marker_of(parts[0])):
            return None
        single = len(self._tails) == 1
        marker = self._marker_ids[0] if single else b""
        for part in parts[1:]:
            if not single:
                marker = self._marker_of(part)
            # Of an id's bytes only the last is below 128, so nothing is found between two ids.
            following = varints.find(marker, at if first and not pieces else at + len(marker))
            if following < 0:
                return None
            pieces.append(varints[at:following])
            at = following
        pieces.append(varints[at:] if at else varints)
        return pieces

    def lengths(self, parts: Sequence[str], *, first: bool) -> list[int]:
        """Characters of the parts, what `split` left out included."""
        left_out = len(self._prefix)
        lengths = [len(part) + left_out for part in parts]
        if first:
            lengths[0] -= left_out
        return lengths

    def _marker_of(self, part: str) -> bytes:
        for tail, marker in zip(self._tails, self._marker_ids, strict=True):
            if part.startswith(tail):
                return marker
        raise AssertionError("a part without a marker")
