"""gRPC framing: the same messages for any cutting of the bytes, and errors as early as they can be known."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.transport.framing import (
    CompressedMessageError,
    Deframer,
    FramingError,
    MessageTooLargeError,
    NotAFrameError,
    frame,
)

LIMIT_BYTES = 300

messages_lists = st.lists(st.binary(max_size=LIMIT_BYTES), max_size=8)
cuts = st.lists(st.integers(0, 10_000), max_size=40)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, some of them empty."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def test_a_frame_is_flags_length_and_message() -> None:
    assert frame(b"abc") == b"\x00\x00\x00\x00\x03abc"
    assert frame(b"") == bytes(5)


@given(messages_lists, cuts)
def test_any_cutting_gives_the_same_messages(messages: list[bytes], places: list[int]) -> None:
    deframer = Deframer(LIMIT_BYTES)
    pieces = cut(b"".join(map(frame, messages)), places)
    assert [message for piece in pieces for message in deframer.feed(piece)] == messages
    assert deframer.missing_bytes == 0
    assert deframer.held_bytes == 0


@given(messages_lists.filter(bool), cuts, st.data())
def test_an_end_inside_a_message_shows(messages: list[bytes], places: list[int], data: st.DataObject) -> None:
    *whole, last = messages
    stream = b"".join(map(frame, whole)) + frame(last)[: data.draw(st.integers(1, len(last) + 4))]
    deframer = Deframer(LIMIT_BYTES)
    assert [message for piece in cut(stream, places) for message in deframer.feed(piece)] == whole
    assert deframer.missing_bytes > 0


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (b"\x00\x00\x00\x01\x2d" + bytes(301), MessageTooLargeError),
        (b"\x00\xff\xff\xff\xff", MessageTooLargeError),
        (b"\x01\x00\x00\x00\x03abc", CompressedMessageError),
        (b"<html>no gRPC here</html>", NotAFrameError),
    ],
)
@given(before=messages_lists, places=cuts)
def test_errors_come_after_the_messages_before_them(
    bad: bytes, error: type[FramingError], before: list[bytes], places: list[int]
) -> None:
    deframer = Deframer(LIMIT_BYTES)
    received: list[bytes] = []
    with pytest.raises(error) as failure:  # noqa: PT012
        for piece in cut(b"".join(map(frame, before)) + bad, places):
            received += deframer.feed(piece)
    assert received + failure.value.messages == before


def test_a_message_over_the_limit_is_known_from_its_prefix() -> None:
    with pytest.raises(MessageTooLargeError, match="301 bytes is over the limit of 300"):
        Deframer(LIMIT_BYTES).feed(b"\x00\x00\x00\x01\x2d")


def test_bytes_that_are_no_frame_are_known_from_the_first() -> None:
    with pytest.raises(NotAFrameError, match="0x3c"):
        Deframer(LIMIT_BYTES).feed(b"<")


def test_a_big_message_in_many_pieces_is_copied_once() -> None:
    size = 8 << 20
    stream = frame(bytes(size))
    deframer = Deframer(size)
    pieces = [stream[at : at + 16_384] for at in range(0, len(stream), 16_384)]
    tracemalloc.start()
    try:
        messages = [message for piece in pieces for message in deframer.feed(piece)]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(message) for message in messages] == [size]
    assert peak_bytes < 1.5 * size
