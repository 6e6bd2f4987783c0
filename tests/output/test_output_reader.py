"""Reasoning and tool calls in the text of models: what is found, whatever the pieces in which the text comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.ir import (
    ChatRequest,
    Event,
    OutputFormat,
    ReasoningDelta,
    TextDelta,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolChoice,
    ToolDef,
)
from extproc.output.parsers import REASONING_PARSERS, TOOL_PARSERS, Parsers
from extproc.output.reader import AnswerReader, Reading, reading_of
from extproc.output.reasoning import begins_inside

CASES = json.loads((Path(__file__).parent / "data" / "answers.json").read_text())

_WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"}},
}
TOOLS = {
    tool.name: tool
    for tool in (
        ToolDef(name="weather", parameters=_WEATHER),
        ToolDef(name="now"),
        ToolDef(name="shell", custom=True),
    )
}


def reading(case: dict[str, Any]) -> Reading | None:
    choice = case["choice"]
    chat = ChatRequest(
        model="m",
        turns=(),
        tools=tuple(TOOLS.values()),
        tool_choice=ToolChoice(choice) if choice in ("auto", "required") else ToolChoice("named", (choice,)),
        output=OutputFormat(kind="json_object") if case.get("output") else None,
    )
    tools = TOOLS if case["tool"] or choice != "auto" else {}
    parsers = Parsers(case["tool"], case["reasoning"])
    return reading_of(parsers, chat, tools, case["prompt_end"], lambda choice, index: f"call_{choice}_{index}")


def events_of(case: dict[str, Any], pieces: Sequence[str]) -> list[Event]:
    found = reading(case)
    assert found is not None
    reader = AnswerReader(found, 2)
    return [event for piece in pieces for event in reader.feed(piece)] + reader.finish()


def parts_of(events: Sequence[Event]) -> list[list[str]]:
    """Texts joined, calls with their arguments: what clients have in the end. Checks the order of the events."""
    parts: list[list[str]] = []
    open_: ToolCallStart | None = None
    calls = 0
    arguments = ""
    for event in events:
        assert event.choice == 2
        match event:
            case TextDelta(text=text) | ReasoningDelta(text=text):
                assert open_ is None
                assert text
                kind = "text" if type(event) is TextDelta else "reasoning"
                if parts and parts[-1][0] == kind:
                    parts[-1][1] += text
                else:
                    parts.append([kind, text])
            case ToolCallStart():
                assert open_ is None
                assert (event.index, event.call_id) == (calls, f"call_2_{calls}")
                assert event.custom == TOOLS[event.name].custom if event.name in TOOLS else True
                open_, arguments = event, ""
            case ToolArgsDelta(text=text):
                assert open_ is not None
                assert text
                assert event.index == open_.index
                arguments += text
            case ToolCallEnd():
                assert open_ is not None
                assert event.arguments == arguments
                parts.append(["call", open_.name, arguments])
                open_ = None
                calls += 1
            case _:
                raise AssertionError(event)
    assert open_ is None
    return parts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_parts_are_found_in_a_whole_text_and_letter_by_letter(case: dict[str, Any]) -> None:
    assert parts_of(events_of(case, [case["text"]])) == case["parts"]
    assert parts_of(events_of(case, list(case["text"]))) == case["parts"]


@settings(max_examples=600)
@given(st.sampled_from(CASES), st.data())
def test_no_cut_changes_what_is_found(case: dict[str, Any], data: st.DataObject) -> None:
    text = case["text"]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
    assert parts_of(events_of(case, pieces)) == case["parts"]


_FRAGMENTS = sorted(
    {"<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "now"', '"arguments": {', "}", ", "}
)
_TEXTS = st.one_of(
    st.lists(st.sampled_from([*_FRAGMENTS, "x", "\n", '"', "\\", "[", "<|channel|>analysis", "<|message|>"])).map(
        "".join
    ),
    st.tuples(st.sampled_from(CASES), st.integers(0, 300), st.integers(0, 300), st.sampled_from(_FRAGMENTS)).map(
        lambda drawn: drawn[0]["text"][: drawn[1]] + drawn[3] + drawn[0]["text"][drawn[2] :]
    ),
)


@settings(max_examples=600)
@given(
    _TEXTS,
    st.sampled_from([None, *TOOL_PARSERS]),
    st.sampled_from([None, *REASONING_PARSERS]),
    st.sampled_from(["auto", "required", "weather"]),
    st.data(),
)
def test_what_is_found_in_any_text_does_not_depend_on_the_cuts(
    text: str, tool: str | None, reasoning: str | None, choice: str, data: st.DataObject
) -> None:
    case = {"tool": tool, "reasoning": reasoning, "prompt_end": "", "choice": choice}
    if reading(case) is None:
        return
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
    whole = parts_of(events_of(case, [text]))
    assert parts_of(events_of(case, pieces)) == whole
    assert parts_of(events_of(case, list(text))) == whole


@given(st.text(alphabet="abc <>{}[]\n", max_size=80), st.sampled_from(["hermes", "qwen3_coder", "mistral", "deepseek"]))
def test_text_without_markers_is_the_answer_as_it_stands(text: str, tool: str) -> None:
    case = {"tool": tool, "reasoning": None, "prompt_end": "", "choice": "auto"}
    assert "".join(part[1] for part in parts_of(events_of(case, list(text)))) == text


def test_arguments_are_streamed_while_they_come() -> None:
    case = {"tool": "hermes", "reasoning": None, "prompt_end": "", "choice": "auto"}
    found = reading(case)
    assert found is not None
    reader = AnswerReader(found, 2)
    assert reader.feed('<tool_call>\n{"name": "weather", ') == []
    assert reader.feed('"arguments": {"ci') == [
        ToolCallStart(2, 0, "call_2_0", "weather"),
        ToolArgsDelta(2, 0, '{"ci'),
    ]
    assert reader.feed('ty": "B') == [ToolArgsDelta(2, 0, 'ty": "B')]
    assert reader.feed('ern"}') == [ToolArgsDelta(2, 0, 'ern"}')]
    assert reader.feed("}\n</tool_call>") == [ToolCallEnd(2, 0, '{"city": "Bern"}')]
    assert reader.finish() == []


@pytest.mark.parametrize(
    ("name", "prompt_end", "continued", "inside"),
    [
        ("think", "<|im_start|>assistant\n<think>\n", None, True),
        ("think", "what does <think> mean?<|im_end|>\n<|im_start|>assistant\n", None, False),
        ("think", "<think>\n\n</think>\n\n", None, False),
        ("think", "", "<think>I begin", True),
        ("think", "", "<think>I begin</think>So", False),
        ("think", "<think>\n", "So", False),
        ("deepseek_r1", "<|assistant|>", None, True),
        ("deepseek_r1", "<think>\n\n</think>\n\n", None, False),
    ],
)
def test_the_prompt_tells_whether_the_answer_begins_in_the_reasoning(
    name: str, prompt_end: str, continued: str | None, inside: bool
) -> None:
    assert begins_inside(name, prompt_end, continued) is inside


def test_without_parsers_there_is_nothing_to_read() -> None:
    assert reading({"tool": None, "reasoning": None, "prompt_end": "", "choice": "auto"}) is None
