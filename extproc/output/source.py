"""Model text that comes in pieces, read as if it were all there.

Parsers are generators that take from a `Source` what they need and pause where it is not there yet. Every step decides
only on characters that further text cannot change, so what a parser finds does not depend on where the pieces are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

__all__ = ["Emit", "Source", "Steps", "open_end"]

_T = TypeVar("_T")

Steps: TypeAlias = Generator[None, None, _T]
"""Pauses where more text is needed."""

Emit: TypeAlias = Callable[[str], None]
"""Takes a piece of text."""

_SPACES = " \t\r\n"
_NOT_SPACE = re.compile(r"[^ \t\r\n]")
_IN_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'["{}\[\]]')
_NOT_SCALAR = re.compile(r"[^-+.0-9A-Za-z]")
_CLOSERS = {"{": "}", "[": "]"}


class Source:
    """What has come of the text and is not taken yet."""

    __slots__ = ("_at", "_ended", "_kept", "_text", "_waiting")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._kept: list[str] | None = None
        self._waiting: tuple[Emit, str] | None = None  # `until`, with nothing held: the first characters of markers

    def passes(self, text: str) -> bool:
        """Whether the text was emitted at once: the parser waits for a marker, and none begins in it.

        Hot: it saves a parser's turn for nearly every token.
        """
        waiting = self._waiting
        if waiting is None:
            return False
        emit, firsts = waiting
        for first in firsts:
            if first in text:
                return False
        emit(text)
        return True

    def feed(self, text: str) -> None:
        """More text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """Nothing follows."""
        self._ended = True

    # What was taken and may have to be given back as text.

    def keep(self, taken: str = "") -> None:
        """From here on, and with what was taken before, keep what is taken."""
        self._kept = [taken]

    def kept(self) -> str:
        """All of it; nothing is kept any more."""
        kept = "".join(self._kept or ())
        self._kept = None
        return kept

    def _take(self, end: int) -> str:
        piece = self._text[self._at : end]
        self._at = end
        if self._kept is not None:
            self._kept.append(piece)
        return piece

    # Steps.

    def next(self) -> Steps[str]:
        """The next character, not taken; empty at the end."""
        while self._at == len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def ahead(self) -> Steps[str]:
        """The next character that is no white space, nothing taken; empty at the end."""
        while True:
            if found := _NOT_SPACE.search(self._text, self._at):
                return found[0]
            if self._ended:
                return ""
            yield

    def spaces(self) -> Steps[str]:
        """Take white space; the character after it is returned, not taken, as by `next`."""
        while True:
            found = _NOT_SPACE.search(self._text, self._at)
            self._take(found.start() if found else len(self._text))
            if found:
                return found[0]
            if self._ended:
                return ""
            yield

    def literal(self, wanted: str) -> Steps[bool]:
        """Take exactly this, or nothing."""
        while True:
            end = self._at + len(wanted)
            have = self._text[self._at : end]
            if have == wanted:
                self._take(end)
                return True
            if self._ended or not wanted.startswith(have):
                return False
            yield

    def word(self, pattern: re.Pattern[str], most: int) -> Steps[str]:
        """Take all characters, `most` at most, up to the first that `pattern` finds."""
        while True:
            found = pattern.search(self._text, self._at)
            end = min(found.start() if found else len(self._text), self._at + most)
            if found or self._ended or end == self._at + most:
                return self._take(end)
            yield

    def line(self, marker: str, most: int) -> Steps[str | None]:
        """Take what stands before the marker, and the marker. None, with nothing taken, if it is not that near."""
        while True:
            end = self._text.find(marker, self._at, self._at + most + len(marker))
            if end >= 0:
                found = self._take(end)
                self._take(end + len(marker))
                return found
            if self._ended or len(self._text) - self._at >= most + len(marker):
                return None
            yield

    def until(self, markers: Sequence[str], emit: Emit) -> Steps[str | None]:
        """Emit all text up to the first of the markers and take it, too; None where the end comes first.

        No marker may begin within another.
        """
        while True:
            text, at = self._text, self._at
            first, found = len(text), None
            for marker in markers:
                place = text.find(marker, at, first + len(marker))
                if place >= 0 and place < first:
                    first, found = place, marker
            if found is None and not self._ended:
                first -= max([open_end(text, marker, at) for marker in markers])
            if first > at:
                emit(self._take(first))
            if found is not None:
                self._take(first + len(found))
                return found
            if self._ended:
                return None
            if self._at == len(self._text) and self._kept is None:
                self._waiting = (emit, "".join({marker[0] for marker in markers}))
            yield
            self._waiting = None

    def rest(self, emit: Emit) -> Steps[None]:
        """Emit everything up to the end."""
        while True:
            if self._at < len(self._text):
                emit(self._take(len(self._text)))
            if self._ended:
                return
            yield

    def string(self) -> Steps[str | None]:
        """Take a JSON string and decode it; None where there is none, or a broken one."""
        pieces: list[str] = []
        if (yield from self.next()) != '"' or not (yield from self.value(pieces.append)):
            return None
        try:
            decoded = json.loads("".join(pieces), strict=False)
        except ValueError:
            return None
        return decoded if isinstance(decoded, str) else None

    def value(self, emit: Emit) -> Steps[bool]:
        """Take a JSON value and emit its text as it stands. False where none begins, or it is broken off.

        Only brackets and strings are looked at.
        """
        first = yield from self.next()
        if first == "" or first in ",:}]" + _SPACES:
            return False
        if first not in '{["':
            return (yield from self._scalar(emit))
        open_: list[str] = []
        while True:
            text, at = self._text, self._at
            in_string = bool(open_) and open_[-1] == '"'
            found = (_IN_STRING if in_string else _STRUCTURE).search(text, at)
            if found is None:
                if len(text) > at:
                    emit(self._take(len(text)))
                if self._ended:
                    return False
                yield
                continue
            character = found[0]
            end = found.end()
            if character == "\\":
                if end == len(text):
                    if self._ended:
                        emit(self._take(end))
                        return False
                    if found.start() > at:
                        emit(self._take(found.start()))
                    yield
                    continue
                emit(self._take(end + 1))
                continue
            if character == '"':
                if in_string:
                    open_.pop()
                else:
                    open_.append('"')
            elif character in _CLOSERS:
                open_.append(_CLOSERS[character])
            elif open_[-1] == character:
                open_.pop()
            else:
                if found.start() > at:
                    emit(self._take(found.start()))
                return False
            emit(self._take(end))
            if not open_:
                return True

    def _scalar(self, emit: Emit) -> Steps[bool]:
        taken = yield from self.word(_NOT_SCALAR, 400)
        try:
            json.loads(taken)
        except ValueError:
            return False
        emit(taken)
        return True


def open_end(text: str, marker: str, at: int = 0) -> int:
    """How much of the marker the text behind `at` ends with, as far as it is not the whole of it."""
    # Hot: most text has not even the first character near its end.
    size = len(text)
    first = marker[0]
    place = text.find(first, max(at, size - len(marker) + 1))
    while place >= 0:
        if marker.startswith(text[place:]):
            return size - place
        place = text.find(first, place + 1)
    return 0
