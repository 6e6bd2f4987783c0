"""An inspection on its way from the child that made it, in pieces.

One value of 250,000 tokens holds the interpreter lock for 30 ms while it is decoded, whichever thread does it. So the
long fields of the table come in chunks, and between two of them other threads get their turn.

Frames of a length (u32, little-endian) and msgpack: first the inspection with these fields empty, then for each of them
chunks, the last of which is empty.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from extproc.tokens.inspection import Failure, Inspection
from extproc.tokens.tables import ByteTable, TextTable, WholeTable

__all__ = ["decode_inspection", "encode_inspection"]

_LENGTH = struct.Struct("<I")
_CHUNK = 8192
_LONG: dict[type, dict[str, Any]] = {
    ByteTable: {"pieces": list[bytes]},
    TextTable: {"rest": list[str | None], "first": list[tuple[int, str]]},
    WholeTable: {"names": list[str | None]},
}
"""The fields that are long, with the types of their chunks: of a dict, its items."""


def encode_inspection(result: Inspection | Failure) -> bytes:
    """The frames, one after another."""
    if isinstance(result, Failure):
        return _frame(result)
    table = result.table
    names = _LONG[type(table)]
    empty = {name: type(getattr(table, name))() for name in names}
    bare = msgspec.structs.replace(result, table=msgspec.structs.replace(table, **empty))
    frames = [_frame(bare)]
    for name in names:
        value = getattr(table, name)
        items = iter(value.items() if isinstance(value, dict) else value)
        while chunk := list(islice(items, _CHUNK)):
            frames.append(_frame(chunk))
        frames.append(_frame([]))
    return b"".join(frames)


def decode_inspection(data: bytes) -> Inspection | Failure:
    """Blocks for up to 0.1 s, in turns with other threads. Raises ValueError for what is no such message."""
    frames = _frames(data)
    result: Inspection | Failure = msgspec.msgpack.decode(next(frames), type=Inspection | Failure)
    if isinstance(result, Failure):
        return result
    table = result.table
    for name, kind in _LONG[type(table)].items():
        value = getattr(table, name)
        take = value.update if isinstance(value, dict) else value.extend
        decoder = msgspec.msgpack.Decoder(kind)
        while chunk := decoder.decode(next(frames)):
            take(chunk)
    return result


def _frame(value: Any) -> bytes:
    data = msgspec.msgpack.encode(value)
    return _LENGTH.pack(len(data)) + data


def _frames(data: bytes) -> Iterator[memoryview]:
    at, view = 0, memoryview(data)
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        yield view[at : at + length]
        at += length
    raise ValueError("the message ends early")
