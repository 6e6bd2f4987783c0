"""Stop strings over piece borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.output.stop import StopMatcher


def run(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
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
    matcher = StopMatcher(["STOP", "\n\n"], include_stop=False)
    assert matcher.feed("Hello ST") == ("Hello ", None)
    assert matcher.feed("S") == ("ST", None)
    assert matcher.feed("x\n") == ("Sx", None)
    assert matcher.feed("y") == ("\ny", None)
    assert matcher.finish() == ""


STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.text("abc", max_size=5), max_size=8)


@given(STOPS, PIECES, st.booleans())
def test_any_pieces_give_what_looking_after_every_character_gives(
    stops: list[str], pieces: list[str], include_stop: bool
) -> None:
    expected = naive(stops, "".join(pieces), include_stop=include_stop)
    assert run(stops, pieces, include_stop=include_stop) == expected


@given(STOPS, PIECES)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops, include_stop=False)
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
