"""The metadata of a GGUF file, which carries a model's vocabulary and merges. Its tensors are not looked at.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3, little-endian.
"""

from __future__ import annotations

import struct
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def metadata(data: bytes) -> dict[str, Any]:
    """By key. Raises ValueError for what is no such file."""
    magic, version, _, count = struct.unpack_from("<4sIQQ", data)
    if magic != b"GGUF" or version != 3:
        raise ValueError("not a GGUF file of version 3")
    reader = _Reader(data, 24)
    return {reader.string(): reader.value(reader.scalar("I")) for _ in range(count)}


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        start, self._at = self._at, self._at + length
        return self._data[start : self._at].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            return [self.value(inner) for _ in range(count)]
        return self.scalar(_SCALARS[kind])
