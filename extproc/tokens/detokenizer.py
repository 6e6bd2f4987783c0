"""From token ids to text, piece by piece: for any chunks, the joined text is what decoding all ids at once gives.

What cannot be decided yet is held back: the bytes of an unfinished character, and with byte fallback a whole run of
byte tokens, since one bad byte turns the run into replacement characters. `finish` gives what is left.
"""

from __future__ import annotations

import json
from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from extproc.tokens.tables import ByteTable, TableData, TextTable, make_decoder

__all__ = ["Detokenizer", "DetokenizerTable"]

_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one choice."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these further ids settle; may be empty."""
        ...

    def finish(self) -> str:
        """The text that was held back. Call once, at the end of the choice."""
        ...


class DetokenizerTable:
    """One vocabulary's table, shared by all choices.

    `size` is one more than the highest id. `streams` is False where text only comes at the end of an answer.
    `longest_bytes` is what a token stands for at most, where every byte of a text is in one: 0 in vocabularies that may
    drop parts of a text, or stand for any of them with an id for the unknown.
    """

    __slots__ = ("_data", "_make", "_special", "longest_bytes", "size", "streams")

    def __init__(self, data: TableData) -> None:
        self._data = data
        self._special = frozenset(data.special)
        self.longest_bytes = 0
        self._make: Callable[[frozenset[int]], Detokenizer]  # given the ids that are skipped
        if isinstance(data, ByteTable):
            self._make = _byte_maker(data)
            self.size = len(data.pieces)
            self.longest_bytes = max(map(len, data.pieces), default=0)
            self.streams = True
        elif isinstance(data, TextTable):
            self._make = _text_maker(data)
            self.size = len(data.rest)
            self.streams = True
        else:
            decode = make_decoder(json.loads(data.decoder)).decode
            names = data.names
            self._make = lambda hidden: _WholeDetokenizer(names, hidden, decode)
            self.size = len(names)
            self.streams = False

    def detokenizer(self, skip_special: bool, shown: frozenset[int] = frozenset()) -> Detokenizer:
        """For one choice. `skip_special` leaves out the tokens that the tokenizer declares as special, but `shown`."""
        if not skip_special:
            return self._make(frozenset())
        # A new set would have to be hashed, for 10 us a request.
        return self._make(self._special - shown if shown else self._special)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token anywhere but at the start, special ones included; empty for an unknown id."""
        if not 0 <= token_id < self.size:
            return b""
        data = self._data
        if isinstance(data, ByteTable):
            return data.pieces[token_id]
        if isinstance(data, TextTable):
            value = data.byte_values.get(token_id)
            return bytes((value,)) if value is not None else (data.rest[token_id] or "").encode()
        return (data.names[token_id] or "").encode()


def _byte_maker(data: ByteTable) -> Callable[[frozenset[int]], Detokenizer]:
    @cache
    def visible(hidden: frozenset[int]) -> list[bytes]:
        pieces = list(data.pieces)
        for at in hidden:
            pieces[at] = b""
        return pieces

    return lambda hidden: _ByteDetokenizer(visible(hidden))


class _ByteDetokenizer:
    """Byte-level vocabularies: a join and an incremental UTF-8 decoding. About 0.2 us a token, one at a time."""

    __slots__ = ("_pending", "_pieces")

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._pending = b""  # at most three bytes: the start of a character

    def feed(self, ids: Sequence[int]) -> str:
        pieces = self._pieces
        try:
            # Streams bring one id a message; the join of a list of one costs as much again.
            data = pieces[ids[0]] if len(ids) == 1 else b"".join([pieces[at] for at in ids])
        except IndexError:  # an engine's padding ids, beyond the vocabulary
            data = b"".join([pieces[at] for at in ids if at < len(pieces)])
        pending = self._pending
        if pending:
            data = pending + data
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def finish(self) -> str:
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", "replace")


def _text_maker(data: TextTable) -> Callable[[frozenset[int]], Detokenizer]:
    # Text is str; bytes belong to a run, and empty bytes leave everything as it is: ids that are skipped or unknown.
    shown: list[str | bytes] = [b"" if text is None else text for text in data.rest]
    for at, value in data.byte_values.items():
        shown[at] = bytes((value,))

    @cache
    def visible(hidden: frozenset[int]) -> list[str | bytes]:
        pieces = list(shown)
        for at in hidden:
            pieces[at] = b""
        return pieces

    return lambda hidden: _TextDetokenizer(visible(hidden), data)


class _TextDetokenizer:
    """Tables of text with runs of byte tokens."""

    __slots__ = ("_at_start", "_pieces", "_run", "_strip_left", "_table")

    def __init__(self, pieces: list[str | bytes], table: TextTable) -> None:
        self._pieces = pieces
        self._table = table
        self._run = bytearray()
        self._at_start = True
        self._strip_left = table.strip_count

    def feed(self, ids: Sequence[int]) -> str:
        pieces, run, out = self._pieces, self._run, []
        size = len(pieces)
        for at in ids:
            piece = pieces[at] if at < size else b""
            if isinstance(piece, str):
                if run:
                    out.append(self._close_run())
                if self._at_start:
                    self._at_start = False
                    piece = self._table.first.get(at, piece)
                out.append(piece)
            else:
                run += piece
        text = "".join(out)
        return self._strip(text) if self._strip_left else text

    def finish(self) -> str:
        text = self._close_run() if self._run else ""
        return self._strip(text) if self._strip_left else text

    def _close_run(self) -> str:
        """All of a run or one replacement character for each of its bytes: the rule of the byte fallback decoder."""
        run, start = self._run, self._at_start
        self._at_start = False
        try:
            text = run.decode()
            space = self._table.space_in_runs
            if space:
                text = text.replace(space, "" if start else " ")
        except UnicodeDecodeError:
            text = _REPLACEMENT * len(run)
        run.clear()
        return text

    def _strip(self, text: str) -> str:
        character, left, at = self._table.strip_character, self._strip_left, 0
        while at < len(text) and left and text[at] == character:
            at += 1
            left -= 1
        self._strip_left = 0 if at < len(text) else left
        return text[at:]


class _WholeDetokenizer:
    """A chain of which no token's share is known before the end: decoded once, by the library's own decoder."""

    __slots__ = ("_decode", "_hidden", "_kept", "_names")

    def __init__(self, names: list[str | None], hidden: frozenset[int], decode: Callable[[list[str]], str]) -> None:
        self._names = names
        self._hidden = hidden
        self._decode = decode
        self._kept: list[str] = []

    def feed(self, ids: Sequence[int]) -> str:
        names, hidden = self._names, self._hidden
        for at in ids:
            if at < len(names) and at not in hidden:
                name = names[at]
                if name is not None:
                    self._kept.append(name)
        return ""

    def finish(self) -> str:
        kept, self._kept = self._kept, []
        return self._decode(kept)
