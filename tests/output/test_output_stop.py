"""Stop strings over piece borders."""

from __future__ import annotations

from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.output.stop import StopMatcher, StopStrings


def run(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(StopStrings(stops), include_stop=include_stop)
    sent = ""
    for piece in pieces:
        safe, matched = matcher.feed(piece)
        sent += safe
        if matched is not None:
            return sent, matched
    return sent + matcher.finish(), None


def naive(stops: list[str], text: str, *, include_stop: bool) -> tuple[str, str | None]:
    """Character by character: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end if include_stop else end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["END"], ["a E", "N", "D b"], ("a ", "END")),
        (["END"], ["ENDEND"], ("", "END")),
        (["END"], ["a EN", "X"], ("a ENX", None)),
        (["aab"], ["a", "a", "a", "b"], ("a", "aab")),
        (["bc", "abcd"], ["ab", "cd"], ("a", "bc")),
        (["bc", "abc"], ["ab", "cd"], ("", "abc")),
        (["abcd", "ab"], ["abcd"], ("", "ab")),
        (["\n\n"], ["a\n", "b\n", "\nc"], ("a\nb", "\n\n")),
        (["😀"], ["a😀b"], ("a", "😀")),
    ],
)
def test_the_first_complete_stop_string_ends_the_text(
    stops: list[str], pieces: list[str], expected: tuple[str, str | None]
) -> None:
    assert run(stops, pieces) == expected


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(StopStrings(["STOP", "\n\n"]), include_stop=False)
    assert matcher.feed("Hello ST") == ("Hello ", None)
    assert matcher.feed("S") == ("ST", None)
    assert matcher.feed("x\n") == ("Sx", None)
    assert matcher.feed("y") == ("\ny", None)
    assert matcher.finish() == ""


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=5) | st.text("abc", max_size=25), max_size=8)


@given(STOPS, PIECES, st.booleans())
def test_any_pieces_give_what_looking_after_every_character_gives(
    stops: list[str], pieces: list[str], include_stop: bool
) -> None:
    expected = naive(stops, "".join(pieces), include_stop=include_stop)
    assert run(stops, pieces, include_stop=include_stop) == expected


@given(STOPS, PIECES)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops), include_stop=False)
    sent = text = ""
    for piece in pieces:
        safe, matched = matcher.feed(piece)
        if matched is not None:
            return
        text += piece
        sent += safe
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        longest = max((b for b in beginnings if text.endswith(b)), key=len, default="")
        assert text[len(sent) :] == longest


class Counted(str):
    """Text that counts the characters that are looked at, one by one or in a search."""

    looks = 0

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        Counted.looks += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        Counted.looks += len(self)
        return super().__contains__(key)  # type: ignore[operator]

    def find(self, sub: str, start: SupportsIndex | None = 0, end: SupportsIndex | None = None, /) -> int:
        at = super().find(sub, start, end)
        stopped = at + 1 if at >= 0 else len(self) if end is None else int(end)
        Counted.looks += stopped - int(start or 0)
        return at


LONG = 500
HARD_STOPS = [
    ["a" + c * (LONG - 1) for c in "bcd"] + ["a" * (LONG - 1) + "b"],
    ["a" * (LONG - 1) + c for c in "bcde"],
    ["a" * i + "b" * (LONG - i) for i in (250, 249, 248, 247)],
    [("a" * 100 + "b") * 4 + "a" * 95 + c for c in "bcde"],
    ["ab" * 249 + c for c in "wxyz"],
    ["b" + "a" * 498 + c for c in "cdef"],
]


@pytest.mark.parametrize("pattern", ["a", "ab", "a" * 100 + "b", "b" + "a" * 498, "a" * 249 + "b"])
@pytest.mark.parametrize("piece_size", [1, 7, 4000])
@pytest.mark.parametrize("stops", HARD_STOPS)
def test_text_that_almost_matches_everywhere_takes_work_in_proportion_to_its_length(
    stops: list[str], piece_size: int, pattern: str
) -> None:
    text = (pattern * (4000 // len(pattern) + 1))[:4000]
    Counted.looks = 0
    matcher = StopMatcher(StopStrings([Counted(stop) for stop in stops]), include_stop=False)
    prepared = Counted.looks
    assert prepared <= 3 * LONG * len(stops)
    for begin in range(0, len(text), piece_size):
        if matcher.feed(Counted(text[begin : begin + piece_size]))[1] is not None:
            break
    assert Counted.looks - prepared <= 6 * len(text) * len(stops)


@given(
    st.lists(st.sampled_from(["aab", "aabaac", "abab", "ababb", "aaaa", "b"]), min_size=1, max_size=4),
    st.text("abc", max_size=40),
    st.integers(1, 6),
)
def test_stop_strings_that_repeat_themselves_are_found_where_they_end_first(
    stops: list[str], text: str, piece_size: int
) -> None:
    pieces = [text[i : i + piece_size] for i in range(0, len(text), piece_size)]
    assert run(stops, pieces) == naive(stops, text, include_stop=False)
