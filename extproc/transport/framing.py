"""gRPC's length-prefixed messages, without I/O.

A frame is one byte of flags (1 = compressed), four bytes of length, big-endian, and the message.
Source: gRPC over HTTP/2 (PROTOCOL-HTTP2.md), "Length-Prefixed-Message".
"""

from __future__ import annotations

from struct import Struct

PREFIX_BYTES = 5
pack_prefix = Struct(">BI").pack
_unpack_prefix = Struct(">BI").unpack


class FramingError(Exception):
    """Bytes that cannot be taken as messages. `messages` are the whole ones that came before them."""

    def __init__(self, text: str, messages: list[bytes]) -> None:
        super().__init__(text)
        self.messages = messages


class MessageTooLargeError(FramingError):
    """A message over the limit; known from its prefix, before its bytes arrive."""


class CompressedMessageError(FramingError):
    """A compressed message: we never offer an encoding, so none is expected."""


class NotAFrameError(FramingError):
    """A flag byte that gRPC does not know: these bytes are something else."""


def frame(message: bytes) -> bytes:
    """One message with its prefix."""
    return pack_prefix(0, len(message)) + message


class Deframer:
    """Cuts a byte stream into messages. After an error it must not be fed again."""

    __slots__ = ("_chunks", "_head", "_limit_bytes", "_missing", "held_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """`limit_bytes`: the largest message accepted, without its prefix."""
        self._limit_bytes = limit_bytes
        self._head = b""  # an incomplete prefix
        self._chunks: list[bytes] = []  # of an incomplete message: joined once, when the last one is there
        self._missing = 0  # bytes of the incomplete message that are still to come
        self.held_bytes = 0  # bytes of the incomplete message that are here

    @property
    def missing_bytes(self) -> int:
        """What the message under way still lacks, at least; 0 between messages, where a stream may end."""
        return self._missing or (PREFIX_BYTES - len(self._head) if self._head else 0)

    def only(self, data: bytes) -> bytes | None:
        """The message, where the bytes are exactly one frame; None where they are anything else, to be fed then.

        Hot: so streams come, a message per token.
        """
        length = len(data) - PREFIX_BYTES
        if self._missing or self._head or not 0 <= length <= self._limit_bytes:
            return None
        # Flag and length as one number: not compressed is a flag of 0.
        return data[PREFIX_BYTES:] if int.from_bytes(data[:PREFIX_BYTES], "big") == length else None

    def feed(self, data: bytes) -> list[bytes]:
        """The messages completed by these bytes, cut anywhere. Raises FramingError."""
        size = len(data)
        if not self._missing and not self._head:
            return self._cut(data, 0, [])
        if self._head:
            return self._cut(self._head + data, 0, [])
        missing = self._missing
        if size < missing:
            self._chunks.append(data)
            self._missing = missing - size
            self.held_bytes += size
            return []
        self._chunks.append(data[:missing] if size > missing else data)
        messages = [b"".join(self._chunks)]
        self._chunks = []
        self._missing = self.held_bytes = 0
        return messages if size == missing else self._cut(data, missing, messages)

    def _cut(self, data: bytes, at: int, messages: list[bytes]) -> list[bytes]:
        """Messages from the boundary at `at` on; what is left over is kept."""
        size = len(data)
        while size - at >= PREFIX_BYTES:
            flags, length = _unpack_prefix(data[at : at + PREFIX_BYTES])
            if flags:
                raise _flag_error(flags, messages)
            if length > self._limit_bytes:
                raise MessageTooLargeError(
                    f"message of {length} bytes is over the limit of {self._limit_bytes} bytes", messages
                )
            at += PREFIX_BYTES
            end = at + length
            if end > size:
                self._head = b""
                self._chunks = [data[at:]] if at < size else []
                self._missing = end - size
                self.held_bytes = size - at
                return messages
            messages.append(data[at:end])
            at = end
        self._head = data[at:]
        if self._head and self._head[0]:
            raise _flag_error(self._head[0], messages)
        return messages


def _flag_error(flags: int, messages: list[bytes]) -> FramingError:
    if flags == 1:
        return CompressedMessageError("compressed messages are not supported", messages)
    return NotAFrameError(f"not a gRPC message: flag byte 0x{flags:02x}", messages)
