"""The data-parallel rank in a request that is serialized already: the worker is chosen last."""

from __future__ import annotations

from typing import Any

from extproc.engines.base import EngineRequest
from extproc.transport.framing import pack_prefix

_PREFIX_BYTES = 5
_VARINT = 0


class RankField:
    """Where a protocol's request names the rank. On the wire a field may stand anywhere, so it is appended."""

    __slots__ = ("_tag",)

    def __init__(self, request: Any, field: str) -> None:
        """`request`: the generated class of the request. Raises KeyError for a field that it does not have."""
        self._tag = _varint(request.DESCRIPTOR.fields_by_name[field].number << 3 | _VARINT)

    def add(self, request: EngineRequest, rank: int) -> EngineRequest:
        """The request with a rank from 0 to 16,383; it must not name one yet."""
        field = self._tag + _varint(rank)
        body = request.body
        length = len(body) - _PREFIX_BYTES + len(field)
        return EngineRequest(request.path, b"".join((pack_prefix(0, length), memoryview(body)[_PREFIX_BYTES:], field)))


def _varint(value: int) -> bytes:
    """Of 14 bits at most."""
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))
