"""From engine events to the answer's text, choice by choice."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.engines.base import Ended, EngineEvent, ProtocolError, Tokens, TokenScores
from extproc.ir import Event, Finish, FinishReason, Sampling, TextDelta, TokenLogprob
from extproc.output.answer_text import AnswerText

EOS = 256
WORD = 1000  # ids from here on are entries of WORDS
WORDS = ["Hello", " world", " END", "ing", "EN", "D", " café", "."]


class ByteDetokenizer:
    """Ids 0 to 255 are bytes, then a special token, then some words; a real incremental UTF-8 decoder."""

    def __init__(self, *, skip_special_tokens: bool) -> None:
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(
            self._decoder.decode(token_bytes(token_id)) for token_id in ids if not (self._skip and token_id == EOS)
        )

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def token_bytes(token_id: int) -> bytes:
    if token_id == EOS:
        return b"<eos>"
    return bytes([token_id]) if token_id < EOS else WORDS[token_id - WORD].encode()


class ByteTokens:
    """The tokenizer's side."""

    def detokenizer(self, *, skip_special_tokens: bool, shown: tuple[str, ...] = ()) -> ByteDetokenizer:
        return ByteDetokenizer(skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return token_bytes(token_id)


def words(*texts: str) -> list[int]:
    return [WORD + WORDS.index(text) for text in texts]


def stop(choice: int = 0, **details: Any) -> Ended:
    return Ended(choice, FinishReason.STOP, **details)


def answer(events: list[EngineEvent], **sampling: Any) -> list[Event]:
    return AnswerText(Sampling(**sampling), ByteTokens()).feed(events)


def text_of(events: list[Event], choice: int = 0) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.choice == choice)


def scored(ids: Sequence[int], top: Sequence[tuple[int, float]] = ()) -> list[TokenScores]:
    return [TokenScores(token_id, -float(at), list(top)) for at, token_id in enumerate(ids)]


def tokens_of(events: list[Event]) -> list[bytes]:
    return [entry.token for e in events if isinstance(e, TextDelta) for entry in e.logprobs or ()]


def test_tokens_become_text_and_the_end_of_sequence_does_not() -> None:
    events = answer([Tokens(0, words("Hello")), Tokens(0, [*words(" world"), EOS]), stop()])
    assert events == [TextDelta(0, "Hello"), TextDelta(0, " world"), Finish(0, FinishReason.STOP)]


def test_special_tokens_are_shown_when_asked_for() -> None:
    assert text_of(answer([Tokens(0, [EOS]), stop()], skip_special_tokens=False)) == "<eos>"


def test_a_character_waits_for_its_last_byte() -> None:
    head, tail = b"caf\xc3", b"\xa9"
    assert answer([Tokens(0, list(head)), Tokens(0, list(tail))]) == [TextDelta(0, "caf"), TextDelta(0, "é")]


def test_an_unfinished_character_is_shown_as_such_at_the_end() -> None:
    events = answer([Tokens(0, list(b"a\xc3")), Ended(0, FinishReason.LENGTH)])
    assert text_of(events) == "a\ufffd"


def test_a_stop_string_over_token_borders_ends_the_choice_at_once() -> None:
    text = AnswerText(Sampling(stop=("END",)), ByteTokens())
    assert text.feed([Tokens(0, words("Hello", "EN"))]) == [TextDelta(0, "Hello")]
    assert not text.finished
    assert text.feed([Tokens(0, words("D", "ing"))]) == [Finish(0, FinishReason.STOP_SEQUENCE, "END")]
    assert text.finished
    assert text.feed([Tokens(0, words("ing")), stop()]) == []


def test_the_matched_stop_string_stays_when_asked_for() -> None:
    events = answer([Tokens(0, words("Hello", " END", "ing"))], stop=("END",), include_stop=True)
    assert events == [TextDelta(0, "Hello END"), Finish(0, FinishReason.STOP_SEQUENCE, "END")]


def test_what_was_held_back_comes_with_the_end() -> None:
    events = answer([Tokens(0, words("EN")), stop()], stop=("END",))
    assert events == [TextDelta(0, "EN"), Finish(0, FinishReason.STOP)]


def test_stop_strings_count_after_the_least_number_of_tokens_only() -> None:
    events = answer([Tokens(0, words("EN", "D", "Hello", " END"))], stop=("END",), min_tokens=2)
    assert text_of(events) == "ENDHello "
    assert events[-1] == Finish(0, FinishReason.STOP_SEQUENCE, "END")


def test_the_engines_word_on_a_stop_string_counts() -> None:
    ended = Ended(0, FinishReason.STOP_SEQUENCE, stop_string="EN")
    events = answer([Tokens(0, words("Hello", "EN")), ended], stop=("END",))
    assert events == [TextDelta(0, "Hello"), Finish(0, FinishReason.STOP_SEQUENCE, "EN")]


@pytest.mark.parametrize("include_stop", [False, True])
def test_the_text_of_a_stop_token_is_shown_only_when_asked_for(include_stop: bool) -> None:
    [dot] = words(".")
    ended = Ended(0, FinishReason.STOP_SEQUENCE, stop_token_id=dot)
    events = answer([Tokens(0, [*words("Hello"), dot]), ended], stop_token_ids=(dot,), include_stop=include_stop)
    assert text_of(events) == ("Hello." if include_stop else "Hello")
    assert events[-1] == Finish(0, FinishReason.STOP_SEQUENCE)


def test_choices_are_independent_and_the_answer_ends_with_the_last() -> None:
    text = AnswerText(Sampling(n=2, stop=("END",)), ByteTokens())
    assert text.feed([Tokens(1, words(" END")), Tokens(0, list(b"\xc3"))]) == [
        TextDelta(1, " "),
        Finish(1, FinishReason.STOP_SEQUENCE, "END"),
    ]
    assert not text.finished
    assert text.feed([Tokens(0, list(b"\xa9")), stop(0)]) == [TextDelta(0, "é"), Finish(0, FinishReason.STOP)]
    assert text.finished
    assert not text.aborted


def test_an_abort_is_reported() -> None:
    text = AnswerText(Sampling(), ByteTokens())
    assert text.feed([Ended(0, FinishReason.ABORT)]) == [Finish(0, FinishReason.ABORT)]
    assert text.aborted


@pytest.mark.parametrize("choice", [1, -1])
def test_a_choice_that_was_not_asked_for_breaks_the_protocol(choice: int) -> None:
    with pytest.raises(ProtocolError):
        answer([Tokens(choice, words("Hello"))])


def test_log_probabilities_come_with_the_first_character_of_their_token() -> None:
    ids = [*words("Hello"), 0xC3, 0xA9]
    top = words("Hello", "ing")
    scores = scored(ids, [(top[0], -0.1), (top[1], -2.0)])
    alternative = (TokenLogprob(b"Hello", -0.1),)
    assert answer([Tokens(0, ids[:2], scores[:2]), Tokens(0, ids[2:], scores[2:])], top_logprobs=1) == [
        TextDelta(0, "Hello", [TokenLogprob(b"Hello", -0.0, alternative)]),
        TextDelta(0, "é", [TokenLogprob(b"\xc3", -1.0, alternative), TokenLogprob(b"\xa9", -2.0, alternative)]),
    ]


def test_log_probabilities_of_text_that_a_stop_string_cut_off_are_not_sent() -> None:
    ids = words("Hello", " END", "ing")
    events = answer([Tokens(0, ids, scored(ids))], stop=("END",), top_logprobs=0)
    assert text_of(events) == "Hello "
    assert tokens_of(events) == [b"Hello", b" END"]  # the second for its space, which stays
    events = answer([Tokens(0, ids, scored(ids))], stop=(" END",), top_logprobs=0)
    assert tokens_of(events) == [b"Hello"]


def test_the_end_of_sequence_has_no_log_probability() -> None:
    ids = [*words("Hello"), EOS]
    assert tokens_of(answer([Tokens(0, ids, scored(ids)), stop()], top_logprobs=0)) == [b"Hello"]


ENDLESS = st.lists(st.integers(0, 255) | st.sampled_from(list(range(WORD, WORD + len(WORDS)))), max_size=20)


@given(
    ids=ENDLESS,
    cuts=st.sets(st.integers(0, 20)),
    stops=st.lists(st.sampled_from(["END", "N", "é", "worl", "o w", "\ufffd"]), max_size=3, unique=True),
    min_tokens=st.integers(0, 3),
    logprobs=st.booleans(),
)
def test_any_pieces_give_the_same_answer(
    ids: list[int], cuts: set[int], stops: list[str], min_tokens: int, logprobs: bool
) -> None:
    sampling: dict[str, Any] = {"stop": tuple(stops), "top_logprobs": 0 if logprobs else None}
    if min_tokens:
        sampling["min_tokens"] = min_tokens
    scores = scored(ids)

    def piece(begin: int, end: int) -> Tokens:
        return Tokens(0, ids[begin:end], scores[begin:end] if logprobs else None)

    borders = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    whole = answer([piece(0, len(ids)), stop()], **sampling)
    pieces = answer([*(piece(a, b) for a, b in pairwise(borders)), stop()], **sampling)
    assert text_of(pieces) == text_of(whole)
    assert pieces[-1] == whole[-1]
    assert tokens_of(pieces) == tokens_of(whole)
    assert len(tokens_of(whole)) <= (len(ids) if logprobs else 0)
    if not stops:
        assert text_of(whole) == b"".join(map(token_bytes, ids)).decode("utf-8", "replace")
