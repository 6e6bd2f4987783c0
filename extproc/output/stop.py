"""Stop strings in text that comes in pieces.

Which match counts does not depend on where the pieces are cut: the one that is complete first, and of those that end
at the same character the longest. Waiting for a match that begins earlier but ends later would keep the engine working
on text that is thrown away; engines, which look after every token, stop at the first complete one too.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string in one choice's text. Feed until a match, then no more.

    Held back is only what may still become a match: the longest end of the text that begins a stop string.
    """

    __slots__ = ("_held", "_include", "_stops")

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        """`stops`: none of them empty. With `include_stop` the match stays in the text."""
        self._stops = tuple(stops)
        self._include = include_stop
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is safe to send now, and the stop string that matched, if one did."""
        held = self._held
        if held:
            text = held + text
        first_end = len(text) + 1
        matched: str | None = None
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0:
                end = at + len(stop)
                if end < first_end or (end == first_end and matched is not None and len(stop) > len(matched)):
                    first_end = end
                    matched = stop
        if matched is not None:
            self._held = ""
            return text[: first_end if self._include else first_end - len(matched)], matched
        cut = self._first_beginning(text)
        self._held = text[cut:]
        return text[:cut], None

    def finish(self) -> str:
        """What is held back, once nothing follows."""
        held = self._held
        self._held = ""
        return held

    def _first_beginning(self, text: str) -> int:
        """Where the longest end of `text` starts that begins a stop string; its length if there is none."""
        cut = len(text)
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= at < cut:
                if stop.startswith(text[at:]):
                    cut = at
                    break
                at = text.find(stop[0], at + 1)
        return cut
