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
        number = request.DESCRIPTOR.fields_by_name[field].number
        assert number < 16, "tags of one byte"
        self._tag = number << 3 | _VARINT

    def add(self, request: EngineRequest, rank: int) -> EngineRequest:
        """The request with a rank from 0 to 16,383; it must not name one yet."""
        field = bytes((self._tag, rank)) if rank < 0x80 else bytes((self._tag, rank & 0x7F | 0x80, rank >> 7))
        body = request.body
        length = len(body) - _PREFIX_BYTES + len(field)
        return EngineRequest(request.path, b"".join((pack_prefix(0, length), memoryview(body)[_PREFIX_BYTES:], field)))
