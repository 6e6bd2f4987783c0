"""A prompt's token ids in the form in which engines take them, so that nobody makes a Python integer of each.

Every engine protocol has the ids as packed varints of protobuf. A varint may be longer than it needs to be, and here
each has exactly four bytes: then the number of ids is known from the length, pieces are joined and cut like any bytes,
and 32-bit ids are spread into varints a thousand at a time, as one large integer: 5 ns an id, where a message of
protobuf takes 18 ns, and nothing at all for ids that a cache holds in this form.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

__all__ = ["MAX_IDS", "WIDTH", "TokenIds"]

MAX_IDS = 1 << 21
"""Ids are below this: three times seven bits. The largest vocabularies have 2^18."""

WIDTH = 4
"""Bytes of an id."""

_CHUNK = 1024 * WIDTH  # bytes spread at a time; larger integers are not cheaper


def _everywhere(pattern: int) -> int:
    return int.from_bytes(pattern.to_bytes(WIDTH, "little") * (_CHUNK // WIDTH), "little")


_FROM_BIT_7 = _everywhere(0x1F_FF80)
_FROM_BIT_15 = _everywhere(0x3F_8000)
_CONTINUES = _everywhere(0x80_8080)
_THIRD = _everywhere(0x7F_0000)
_SECOND_AND_THIRD = _everywhere(0x3F_FF00)


class TokenIds(Sequence[int]):
    """Ids as varints of four bytes each. Iterating or indexing decodes all of them."""

    __slots__ = ("varints",)

    def __init__(self, varints: bytes = b"") -> None:
        """`varints`: from another `TokenIds`."""
        self.varints = varints

    @classmethod
    def from_packed(cls, packed: bytes) -> TokenIds:
        """From uint32, little-endian, each below MAX_IDS. Hot."""
        if len(packed) <= _CHUNK:
            return cls(_spread(packed))
        return cls(b"".join([_spread(packed[at : at + _CHUNK]) for at in range(0, len(packed), _CHUNK)]))

    @classmethod
    def of(cls, ids: Iterable[int]) -> TokenIds:
        """From numbers. Raises ValueError for one that is negative or not below MAX_IDS."""
        try:
            values = array("I", ids)
        except OverflowError:
            raise ValueError("a token id is negative or has more than 32 bits") from None
        if values and max(values) >= MAX_IDS:
            raise ValueError(f"the token id {max(values)} is not below {MAX_IDS}")
        if sys.byteorder == "big":
            values.byteswap()
        return cls.from_packed(values.tobytes())

    def packed(self) -> bytes:
        """As uint32, little-endian."""
        varints = self.varints
        return b"".join([_gather(varints[at : at + _CHUNK]) for at in range(0, len(varints), _CHUNK)])

    def array(self) -> array[int]:
        """As an array of uint32."""
        values = array("I", self.packed())
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def __len__(self) -> int:
        return len(self.varints) // WIDTH

    def __iter__(self) -> Iterator[int]:
        return iter(self.array())

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self.array()[at]

    def __eq__(self, other: object) -> bool:
        return self.varints == other.varints if isinstance(other, TokenIds) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.varints)

    def __repr__(self) -> str:
        return f"TokenIds.of({self.array().tolist()})"


def _spread(packed: bytes) -> bytes:
    """21 bits of every 32 into the low seven of three bytes. Adding a part of a number to it moves that part left."""
    size = len(packed)
    value = int.from_bytes(packed, "little")
    value += value & _FROM_BIT_7
    value += value & _FROM_BIT_15
    value += _CONTINUES if size == _CHUNK else _CONTINUES & ((1 << 8 * size) - 1)
    return value.to_bytes(size, "little")


def _gather(varints: bytes) -> bytes:
    size = len(varints)
    value = int.from_bytes(varints, "little")
    value -= _CONTINUES if size == _CHUNK else _CONTINUES & ((1 << 8 * size) - 1)
    value -= (value & _THIRD) >> 1
    value -= (value & _SECOND_AND_THIRD) >> 1
    return value.to_bytes(size, "little")
