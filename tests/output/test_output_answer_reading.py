"""From engine events to reasoning, text and calls: counts, log probabilities and ends."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from extproc.engines.base import Ended, EngineEvent, Tokens, TokenScores
from extproc.ir import (
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    Sampling,
    TextDelta,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolDef,
)
from extproc.output.answer_text import AnswerText
from extproc.output.parsers import TOOL_PARSERS
from extproc.output.reader import Reading

WORDS = [
    "<think>",
    "Hm",
    " so",
    "</think>",
    "\n\n",
    "Yes",
    ".",
    "<tool_call>",
    '{"name": "now"}',
    "</tool_call>",
    "<eos>",
]
SPECIAL = frozenset(("<think>", "</think>", "<eos>"))


class Words:
    """One id a word, of which some are special."""

    def __init__(self, hidden: frozenset[str] = frozenset()) -> None:
        self._hidden = hidden

    def detokenizer(self, *, skip_special_tokens: bool, shown: tuple[str, ...] = ()) -> Words:
        return Words(SPECIAL - set(shown) if skip_special_tokens else frozenset())

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(WORDS[at] for at in ids if WORDS[at] not in self._hidden)

    def finish(self) -> str:
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        return WORDS[token_id].encode()


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


READING = Reading(
    call_id=lambda choice, index: f"call_{choice}_{index}",
    reasoning="think",
    calls=TOOL_PARSERS["hermes"],
    tools={"now": ToolDef(name="now")},
    shown=("<think>", "</think>"),
)
ANSWER = ids("<think>", "Hm", " so", "</think>", "\n\n", "Yes", ".", "<tool_call>", '{"name": "now"}', "</tool_call>")


def read(
    pieces: Sequence[Sequence[int]], *, scores: bool = False, end: Ended | None = None, sampling: Sampling | None = None
) -> tuple[list[Event], AnswerText]:
    answer = AnswerText(sampling or Sampling(top_logprobs=0 if scores else None), Words(), READING)
    events: list[Event] = []
    for piece in pieces:
        found = [TokenScores(token_id, -float(token_id), []) for token_id in piece] if scores else None
        engine: list[EngineEvent] = [Tokens(0, piece, found)]
        events += answer.feed(engine)
    events += answer.feed([end or Ended(0, FinishReason.STOP)])
    return events, answer


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_an_answer_is_the_same_in_any_pieces_of_tokens(size: int) -> None:
    events, answer = read([ANSWER[at : at + size] for at in range(0, len(ANSWER), size)])
    assert "".join(event.text for event in events if type(event) is ReasoningDelta) == "Hm so"
    assert "".join(event.text for event in events if type(event) is TextDelta) == "Yes."
    assert events[-4:] == [
        ToolCallStart(0, 0, "call_0_0", "now"),
        ToolArgsDelta(0, 0, "{}"),
        ToolCallEnd(0, 0, "{}"),
        Finish(0, FinishReason.TOOL_CALLS),
    ]
    # Both words and the closing marker: the opening one says only that reasoning begins.
    assert answer.reasoning_tokens == 4
    assert answer.finished


def test_an_answer_that_is_cut_ends_so_also_with_calls() -> None:
    events, _ = read([ANSWER], end=Ended(0, FinishReason.LENGTH))
    assert events[-1] == Finish(0, FinishReason.LENGTH)


def test_a_plain_answer_of_a_model_that_may_reason_counts_no_reasoning() -> None:
    events, answer = read([ids("Yes", "."), ids("<eos>")])
    assert events == [TextDelta(0, "Yes"), TextDelta(0, "."), Finish(0, FinishReason.STOP)]
    assert answer.reasoning_tokens == 0


def test_log_probabilities_are_those_of_the_text() -> None:
    for pieces in ([[at] for at in ANSWER], [ANSWER]):
        events, _ = read(pieces, scores=True)
        found = [entry.token for event in events if type(event) is TextDelta for entry in event.logprobs or []]
        assert found == [b"Yes", b"."]


def test_a_stop_string_ends_reasoning_too() -> None:
    events, answer = read([[at] for at in ANSWER], sampling=Sampling(stop=(" so",)))
    assert events == [ReasoningDelta(0, "Hm"), Finish(0, FinishReason.STOP_SEQUENCE, " so")]
    assert answer.finished


def test_an_aborted_answer_says_nothing_more() -> None:
    events, answer = read([ids("<think>", "Hm")], end=Ended(0, FinishReason.ABORT))
    assert events[-1] == Finish(0, FinishReason.ABORT)
    assert answer.aborted


def test_the_arguments_are_json() -> None:
    events, _ = read([ANSWER])
    assert [json.loads(event.arguments) for event in events if type(event) is ToolCallEnd] == [{}]
