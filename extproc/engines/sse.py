"""Server-sent events out of bytes that are cut anywhere.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html. Only `data` matters for engines: names of events
and comments are passed over.
"""

from __future__ import annotations

from extproc.engines.base import ProtocolError

MOST_LINE_BYTES = 8 << 20
"""Longest line: a whole answer with its log probabilities in one event takes a few MB."""


class SseReader:
    """Data of events, in their order."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""  # a line whose end has not come
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes. Raises ProtocolError for a line that does not end."""
        text = self._rest + piece if self._rest else piece
        if b"\r" in text:
            # The last one may be half of a line's end.
            half = b"\r" if text.endswith(b"\r") else b""
            text = text[: len(text) - len(half)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + half
        lines = text.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MOST_LINE_BYTES:
            raise ProtocolError(f"an event of over {MOST_LINE_BYTES} bytes")
        return self._lines(lines)

    def end(self) -> list[bytes]:
        """The last event, where no blank line follows it."""
        lines, self._rest = [self._rest.rstrip(b"\r"), b""], b""
        return self._lines(lines)

    def _lines(self, lines: list[bytes]) -> list[bytes]:
        found: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line and data:
                found.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
        return found
