"""Messages of a streamed answer as bytes. Hot path: a message per token and stream.

GenerateResponse { chunk = 1, complete = 2 }; GenerateStreamChunk { token_ids = 1, prompt_tokens = 2,
completion_tokens = 3, cached_tokens = 4, output_logprobs = 5, input_logprobs = 6, index = 7 }; GenerateComplete
{ output_ids = 1, finish_reason = 2, prompt_tokens = 3, … }. proto3 leaves zeros out and packs repeated numbers.
Written by hand a chunk costs 0.55 us, through protobuf 1.4 us, which matters where the simulator must be no bottleneck.
"""

from __future__ import annotations

from collections.abc import Sequence

_CHUNK = b"\x0a"
_TOKEN_IDS = b"\x0a"
_PROMPT_TOKENS = b"\x10"
_COMPLETION_TOKENS = b"\x18"
_CACHED_TOKENS = b"\x20"
_INDEX = b"\x38"


def varint(value: int) -> bytes:
    """A number below 2^32 as protobuf writes it."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: bytes, value: int) -> bytes:
    """One number, or nothing if it is zero."""
    return tag + varint(value) if value else b""


class ChunkWriter:
    """Writes the chunks of one sequence."""

    __slots__ = ("_head", "_tail", "_tail_of_one")

    def __init__(self, prompt_tokens: int, cached_tokens: int, index: int) -> None:
        self._head = field(_PROMPT_TOKENS, prompt_tokens)
        self._tail = field(_CACHED_TOKENS, cached_tokens) + field(_INDEX, index)
        self._tail_of_one = self._head + _COMPLETION_TOKENS + b"\x01" + self._tail

    def chunk(self, ids: Sequence[int], more: bytes = b"") -> bytes:
        """One GenerateResponse with a chunk of `ids`; `more` is further fields of the chunk."""
        if len(ids) == 1:
            packed = varint(ids[0])
            tail = self._tail_of_one
        else:
            packed = b"".join(map(varint, ids))
            tail = b"".join((self._head, _COMPLETION_TOKENS, varint(len(ids)), self._tail))
        body = b"".join((_TOKEN_IDS, varint(len(packed)), packed, tail, more))
        return b"".join((_CHUNK, varint(len(body)), body))
