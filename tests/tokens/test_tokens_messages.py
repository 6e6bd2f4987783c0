"""Turns as chat templates read them: tools, calls, results and reasoning in their order."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.ir import (
    ChatRequest,
    Json,
    Media,
    Reasoning,
    ReasoningRequest,
    Refusal,
    RequestError,
    Text,
    ToolCall,
    ToolChoice,
    ToolDef,
    ToolResult,
    Turn,
)
from extproc.tokens.conversation import Forms
from extproc.tokens.messages import messages_of, offered_tools, reasoning_kwargs, tools_of

CALL = ToolCall(call_id="c", name="f", arguments='{"a": 1}')
OBJECTS = Forms()
TEXTS = Forms(argument_objects=False)


def test_an_answer_with_calls_is_one_message() -> None:
    turn = Turn("assistant", (Reasoning("hm"), Reasoning("so"), Text("a"), Refusal("b"), CALL))
    assert messages_of([turn], OBJECTS) == [
        {
            "role": "assistant",
            "content": "a\nb",
            "reasoning_content": "hm\nso",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        }
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": tru', ""])
def test_arguments_stay_text_where_the_template_reads_text(arguments: str) -> None:
    turn = Turn("assistant", (ToolCall(call_id="c", name="f", arguments=arguments),))
    (message,) = messages_of([turn], TEXTS)
    assert message["tool_calls"][0]["function"]["arguments"] == arguments
    assert message["content"] == ""


@pytest.mark.parametrize(("arguments", "value"), [('{"a": tru', '{"a": tru'), ("", {}), ("[1]", "[1]")])
def test_arguments_that_are_no_object_stay_text(arguments: str, value: object) -> None:
    turn = Turn("assistant", (ToolCall(call_id="c", name="f", arguments=arguments),))
    (message,) = messages_of([turn], OBJECTS)
    assert message["tool_calls"][0]["function"]["arguments"] == value


def test_ids_that_a_template_refuses_become_others_that_still_pair() -> None:
    calls = (
        ToolCall(call_id="call_1", name="f", arguments="{}"),
        ToolCall(call_id="abcde1234", name="f", arguments=""),
    )
    turns = [
        Turn("assistant", (Reasoning("hm"), *calls)),
        Turn("tool", (ToolResult(call_id="call_1", parts=(Text("x"),)), ToolResult(call_id="abcde1234", parts=()))),
    ]
    answer, first, second = messages_of(turns, Forms(short_call_ids=True, takes_reasoning=False))
    ids = [call["id"] for call in answer["tool_calls"]]
    assert [first["tool_call_id"], second["tool_call_id"]] == ids
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert ids[1] == "abcde1234"
    assert "reasoning_content" not in answer


def test_the_input_of_a_custom_tool_is_its_one_argument() -> None:
    turn = Turn("assistant", (ToolCall(call_id="c", name="f", arguments='ls "a"', custom=True),))
    (message,) = messages_of([turn], OBJECTS)
    assert message["tool_calls"][0]["function"]["arguments"] == {"input": 'ls "a"'}


def test_results_in_a_users_turn_are_messages_of_their_own_in_their_place() -> None:
    turns = [
        Turn("assistant", (CALL,)),
        Turn(
            "user",
            (
                ToolResult(call_id="c", parts=(Text("one"), Json({"a": "ü"}))),
                Text("and then?"),
                ToolResult(call_id="d", parts=(Text("late"),), name="g"),
            ),
        ),
    ]
    assert messages_of(turns, OBJECTS)[1:] == [
        {"role": "tool", "content": 'one\n{"a": "ü"}', "tool_call_id": "c", "name": "f"},
        {"role": "user", "content": "and then?"},
        {"role": "tool", "content": "late", "tool_call_id": "d", "name": "g"},
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such city", "Error: no such city"),
        ("Error: no", "Error: no"),
        ('{"error": "no"}', '{"error": "no"}'),
        ("", "Error: "),
    ],
)
def test_the_model_is_told_that_a_tool_failed(text: str, shown: str) -> None:
    turn = Turn("tool", (ToolResult(call_id="c", parts=(Text(text),), is_error=True),))
    assert messages_of([turn], OBJECTS)[0]["content"] == shown


def test_parts_go_to_templates_that_take_only_parts() -> None:
    forms = Forms(takes_text=False, takes_parts=True)
    turns = [Turn("user", (Text("a"),)), Turn("tool", (ToolResult(call_id="c", parts=(Text("b"),)),))]
    assert [message["content"] for message in messages_of(turns, forms)] == [
        [{"type": "text", "text": "a"}],
        [{"type": "text", "text": "b"}],
    ]


def test_media_is_refused_by_its_place() -> None:
    turn = Turn("user", (Text("a"), Media(modality="image", url="x", path="messages[0].content[1].type")))
    with pytest.raises(RequestError) as caught:
        messages_of([turn], OBJECTS)
    assert caught.value.info.param == "messages[0].content[1].type"
    assert "images" in caught.value.info.message


def test_tools_are_written_as_openai_does() -> None:
    tools = (ToolDef(name="f", description="d", parameters={"type": "object"}, strict=True), ToolDef(name="g"))
    assert tools_of(tools) == [
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        },
        {"type": "function", "function": {"name": "g"}},
    ]
    assert tools_of(()) is None
    (custom,) = tools_of((ToolDef(name="h", custom=True),)) or []
    assert custom["function"]["parameters"]["required"] == ["input"]


def test_only_tools_that_may_be_called_are_offered() -> None:
    tools = (ToolDef(name="f"), ToolDef(name="g"))

    def offered(*choice: object) -> list[str]:
        chosen = ToolChoice(*choice)  # type: ignore[arg-type]
        return [tool.name for tool in offered_tools(ChatRequest(model="", turns=(), tools=tools, tool_choice=chosen))]

    assert offered("none") == []
    assert offered("auto") == offered("named", ("f",)) == ["f", "g"]
    assert offered("required", ("g",)) == ["g"]


def test_the_wish_to_reason_has_the_names_that_templates_know() -> None:
    def kwargs(template: str = "", **wish: Any) -> dict[str, Any]:
        return reasoning_kwargs(ReasoningRequest(**wish), template)

    assert kwargs() == {}
    assert kwargs(enabled=True) == {"enable_thinking": True, "thinking": True}
    assert kwargs(effort="none") == {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}
    assert kwargs(effort="high")["reasoning_effort"] == "high"
    assert kwargs(effort="max")["reasoning_effort"] == "high"
    assert kwargs("{% if reasoning_effort == 'max' %}", effort="max")["reasoning_effort"] == "max"
    assert kwargs(budget_tokens=0)["enable_thinking"] is False
