"""Control tokens in text of clients: text that looks like one must not become one.

Tokenizers find control tokens wherever their text stands, so a user could end a turn and begin another. Engines leave
it at that. Here a mark, a character that the request does not have, is put into every such text before the template
sees it, behind the first character, and also where a token would only come into being between a client's text and what
the template puts beside it. In the rendered text marks that are inside of a control token say where it is cut; its
halves are encoded one by one, so that no token comes of them. All other marks are dropped and change nothing. What the
template itself writes has no marks.

Marks, not a cut of each client's text from the template's: words at that border would be encoded differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

__all__ = ["Escaper", "Marked"]

_MARKS = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))  # for private use
_MAX_STARTS = 32
# Templates compare these; as values of these keys they stay as they are.
_WORDS_OF_KEYS = {
    "role": frozenset(("system", "developer", "user", "assistant", "tool")),
    "type": frozenset(
        ("text", "function", "object", "string", "number", "integer", "boolean", "array", "null"),
    ),
}


class Marked:
    """One request's clients' texts with their marks."""

    __slots__ = ("_escaper", "mark")

    def __init__(self, escaper: Escaper, mark: str) -> None:
        self._escaper = escaper
        self.mark = mark

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value with marks in its texts. Plain words as keys, and the words that templates know, have none."""
        if isinstance(value, str):
            return value if _is_known(value, key) else self._escaper.mark_text(value, self.mark)
        if isinstance(value, dict):
            return {self._key(name): self.value(inner, name) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return value

    def _key(self, name: str) -> str:
        return name if name.isidentifier() else self._escaper.mark_text(name, self.mark)

    def pieces(self, rendered: str) -> list[str]:
        """The rendered text without marks, cut where a control token is not to be one."""
        return self._escaper.cut(rendered, self.mark)


class Escaper:
    """The control tokens of one model."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Tokens of a single character cannot be cut and are left out."""
        # The longest first: of those that begin at one place the pattern finds the longest.
        self._tokens = sorted({token for token in tokens if len(token) > 1}, key=len, reverse=True)
        self._longest = max(map(len, self._tokens), default=0)
        alternatives = "|".join(map(re.escape, self._tokens)) or r"(?!)"
        self._any = re.compile(alternatives)
        self._each = re.compile(f"(?=({alternatives}))")  # also where they overlap
        self._starts = sorted({token[:2] for token in self._tokens})
        self._beginnings = frozenset(token[:end] for token in self._tokens for end in range(1, len(token)))
        self._ends = frozenset(token[start:] for token in self._tokens for start in range(1, len(token)))
        self._insides = "\0".join(token[1:-1] for token in self._tokens)

    def count(self, text: str) -> int:
        """How many control tokens a tokenizer finds in the text."""
        return sum(1 for _ in self._any.finditer(text)) if self._may_hold(text) else 0

    def for_request(self, values: Iterable[Any]) -> Marked | None:
        """For a request with these JSON values from its client; None where nothing in them needs a mark.

        Raises ValueError where no character is left to mark with.
        """
        texts = [text for value in values for text in _texts(value)]
        if not any(self._places(text) for text in texts):
            return None
        used = set().union(*texts)
        for code in _MARKS:
            if chr(code) not in used:
                return Marked(self, chr(code))
        raise ValueError("the request uses every character for private use")

    def _may_hold(self, text: str) -> bool:
        """Much faster than the patterns where the answer is no, which is nearly always."""
        starts = self._starts
        return len(starts) > _MAX_STARTS or any(start in text for start in starts)

    def _places(self, text: str) -> set[int]:
        """Where marks are needed."""
        places: set[int] = set()
        if self._may_hold(text):
            places.update(match.start() + 1 for match in self._each.finditer(text))
        # Templates strip texts.
        start = len(text) - len(text.lstrip())
        for begin, inner in ((0, text), (start, text.strip())):
            if self._begins_inside(inner):
                places.add(begin)
            places.update(begin + place for place in self._open_ends(inner))
        return places

    def mark_text(self, text: str, mark: str) -> str:
        """The text with marks."""
        places = self._places(text)
        if not places:
            return text
        out, at = [], 0
        for place in sorted(places):
            out.append(text[at:place])
            at = place
        out.append(text[at:])
        return mark.join(out)

    def _begins_inside(self, text: str) -> bool:
        """Whether a token could end in this text that began before it."""
        ends = self._ends
        return any(text[:end] in ends for end in range(1, min(len(text), self._longest) + 1)) or (
            0 < len(text) < self._longest and text in self._insides
        )

    def _open_ends(self, text: str) -> Iterator[int]:
        """Behind the first character of whatever at the end of the text could become a token."""
        beginnings = self._beginnings
        for start in range(max(0, len(text) - self._longest), len(text)):
            if text[start:] in beginnings:
                yield start + 1

    def cut(self, rendered: str, mark: str) -> list[str]:
        """See `Marked.pieces`."""
        stretches = rendered.split(mark)
        text = "".join(stretches)
        marked: list[int] = []
        at = 0
        for stretch in stretches[:-1]:
            at += len(stretch)
            marked.append(at)
        cuts = [place for place in marked if self._inside_token(text, place)]
        if not cuts:
            return [text]
        bounds = [0, *dict.fromkeys(cuts), len(text)]
        return [text[start:end] for start, end in pairwise(bounds)]

    def _inside_token(self, text: str, place: int) -> bool:
        start = max(0, place - self._longest + 1)
        around = text[start : place + self._longest - 1]
        place -= start
        for match in self._each.finditer(around):
            begin = match.start()
            if begin >= place:
                return False
            if begin + len(match[1]) > place:
                return True
        return False


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """All texts that may need marks."""
    if isinstance(value, str):
        if not _is_known(value, key):
            yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            if not name.isidentifier():
                yield name
            yield from _texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _is_known(text: str, key: str) -> bool:
    return key in _WORDS_OF_KEYS and text in _WORDS_OF_KEYS[key]
