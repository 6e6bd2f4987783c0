"""Stop strings in text that comes in pieces.

Which match counts does not depend on where the pieces are cut: the one that is complete first, and of those that end
at the same character the longest. Waiting for a match that begins earlier but ends later would keep the engine working
on text that is thrown away; engines, which look after every token, stop at the first complete one too.

Each stop string is matched by itself (Knuth, Morris and Pratt): a number per stop string says how much of it the text
ends with, and no character is looked at again, so the work is bounded by new characters times stop strings whatever
they are. Most text begins no stop string; there one search for its first character is all.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """A request's stop strings, prepared once for all its choices."""

    __slots__ = ("patterns",)

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: none of them empty. Takes time in proportion to their length."""
        self.patterns = tuple((stop, stop[0], _fallbacks(stop)) for stop in stops)
        """Each with its first character and its fallbacks."""


class StopMatcher:
    """Finds the first stop string in one choice's text. Feed until a match, then no more.

    Held back is only what may still become a match: the longest end of the text that begins a stop string.
    """

    __slots__ = ("_begun", "_held", "_include", "_patterns")

    def __init__(self, stops: StopStrings, *, include_stop: bool) -> None:
        """With `include_stop` the match stays in the text."""
        self._patterns = stops.patterns
        self._include = include_stop
        self._held = ""
        self._begun = [0] * len(self._patterns)  # how much of each stop string the text ends with

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to send now, and the stop string that matched, if one did.

        Hot: once per token of a request with stop strings.
        """
        begun = self._begun
        first_end = len(text) + 1
        matched: str | None = None
        longest = 0
        for index, (stop, first, fallbacks) in enumerate(self._patterns):
            size = begun[index]
            if not size and first not in text:
                continue
            end, size = _advance(text, stop, fallbacks, size)
            begun[index] = size
            if size == len(stop):
                if end < first_end or (end == first_end and matched is not None and size > len(matched)):
                    first_end = end
                    matched = stop
            elif size > longest:
                longest = size
        held = self._held
        if matched is not None:
            self._held = ""
            end = len(held) + first_end
            return (held + text)[: end if self._include else end - len(matched)], matched
        if held:
            text = held + text
        elif not longest:
            return text, None
        cut = len(text) - longest
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> str:
        """What is held back, once nothing follows."""
        held = self._held
        self._held = ""
        return held


def _advance(text: str, stop: str, fallbacks: Sequence[int], size: int) -> tuple[int, int]:
    """Continue after `size` characters of `stop`: where in `text` it is complete, or else the end, and the new size."""
    whole = len(stop)
    end = len(text)
    if end < 2 * whole:
        return _step(text, 0, end, stop, fallbacks, size)
    # A long piece, such as a whole answer: only its borders character by character. The interpreter's own search is
    # 30 times as fast over ordinary text and, with a limited length of `stop`, bounded per character as well.
    if size:
        at, size = _step(text, 0, whole - 1, stop, fallbacks, size)
        if size == whole:
            return at, size
    at = text.find(stop)
    if at >= 0:
        return at + whole, whole
    return _step(text, end - whole + 1, end, stop, fallbacks, 0)


def _step(text: str, at: int, end: int, stop: str, fallbacks: Sequence[int], size: int) -> tuple[int, int]:
    """The same for `text` from `at` to `end`, character by character."""
    whole = len(stop)
    while at < end:
        if not size:
            at = text.find(stop[0], at, end) + 1
            if not at:
                return end, 0
            size = 1
        else:
            character = text[at]
            while size and stop[size] != character:
                size = fallbacks[size]
            if not size:
                continue  # the character may still be the first one
            size += 1
            at += 1
        if size == whole:
            return at, size
    return end, size


def _fallbacks(stop: str) -> list[int]:
    """By the number of characters that match: how many still match if the next one does not."""
    fallbacks = [0, 0]
    size = 0
    for character in stop[1:-1]:
        while size and stop[size] != character:
            size = fallbacks[size]
        if stop[size] == character:
            size += 1
        fallbacks.append(size)
    return fallbacks
