"""What tools, reasoning and forms of the answer come to with a given chat template."""

from __future__ import annotations

from typing import Any, cast

import pytest

from extproc.engines.vllm import VllmEngine
from extproc.gateway.backend import Backend
from extproc.gateway.plan import Plan, check_tools, plan_answer
from extproc.ir import (
    ChatRequest,
    OutputFormat,
    Reasoning,
    ReasoningRequest,
    RequestError,
    Text,
    ToolCall,
    ToolChoice,
    ToolDef,
    Turn,
)
from extproc.routing.pool import Pool
from extproc.tokens.model import ModelTokens

HERMES = "{% if tools %}<tool_call>{% endif %}{{ messages }}"
THINKER = HERMES + "{% if enable_thinking %}{{ reasoning_content }}</think>{% endif %}"
MISTRAL = "{{ tools }}[TOOL_CALLS]"
PLAIN = "{{ messages }}"

WEATHER = ToolDef(name="weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})
NOW = ToolDef(name="now")


class Template:
    """A model of which only the chat template is known."""

    def __init__(self, text: str) -> None:
        self.template_text = text


class NamedPool:
    """A pool of which only the name is known."""

    name = "p"


def backend(template: str, **names: str) -> Backend:
    made = Backend(cast(Pool, NamedPool()), VllmEngine(), None, **names)
    made.tokens = cast(ModelTokens, Template(template))
    return made


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest(model="m", turns=fields.pop("turns", (Turn("user", (Text("a"),)),)), **fields)


def plan(asked: ChatRequest, template: str = HERMES, prompt_end: str = "") -> Plan:
    return plan_answer(asked, backend(template), prompt_end, "chatcmpl-1", "call_")


def refusal(asked: ChatRequest, template: str = HERMES) -> tuple[str | None, str]:
    with pytest.raises(RequestError) as caught:
        check_tools(asked, backend(template))
    return caught.value.info.param, caught.value.info.message


def test_plain_text_needs_no_plan() -> None:
    assert plan(chat()) == Plan()
    assert plan(chat(tools=(NOW,), tool_choice=ToolChoice("none"))) == Plan()


def test_tools_that_make_no_sense_are_refused() -> None:
    check_tools(chat(tools=(WEATHER, NOW), tool_choice=ToolChoice("named", ("now",))), backend(HERMES))
    assert refusal(chat(tool_choice=ToolChoice("required")))[0] == "tool_choice"
    assert refusal(chat(tools=(NOW, NOW)))[0] == "tools"
    assert "'other'" in refusal(chat(tools=(NOW,), tool_choice=ToolChoice("named", ("other",))))[1]
    assert refusal(chat(tools=(NOW,)), PLAIN)[0] == "tools"
    check_tools(chat(tools=(NOW,), tool_choice=ToolChoice("none")), backend(PLAIN))


def test_the_template_tells_how_calls_and_reasoning_are_read() -> None:
    reading = plan(chat(tools=(NOW,)), THINKER, "<think>\n").reading
    assert reading is not None
    assert (reading.reasoning, reading.inside, list(reading.tools)) == ("think", True, ["now"])
    assert reading.shown == ("<tool_call>", "</tool_call>", "<think>", "</think>")
    without = plan(chat(), THINKER).reading
    assert without is not None
    assert (without.calls, without.inside) == (None, False)


def test_the_configuration_overrules_the_template() -> None:
    made = backend(THINKER, tool_parser="mistral", reasoning_parser="none")
    assert (made.parsers.tool, made.parsers.reasoning) == ("mistral", None)


def test_a_tool_that_must_be_called_binds_the_engine_to_its_arguments() -> None:
    asked = chat(tools=(WEATHER, NOW), tool_choice=ToolChoice("named", ("weather",)))
    output = plan(asked).output
    assert output is not None
    assert (output.schema, output.path) == (WEATHER.parameters, "tool_choice")


def test_definitions_of_several_tools_stay_in_reach_of_their_references() -> None:
    def tool(name: str, kind: str) -> ToolDef:
        inner = {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": kind}}}
        return ToolDef(name=name, parameters={"type": "object", **inner})

    required = ToolChoice("required")
    output = plan(chat(tools=(tool("a", "string"), tool("b", "string")), tool_choice=required)).output
    assert output is not None
    assert output.schema["$defs"] == {"x": {"type": "string"}}
    assert all("$defs" not in one["properties"]["parameters"] for one in output.schema["items"]["anyOf"])
    assert "maxItems" not in output.schema
    with pytest.raises(RequestError, match="define 'x'"):
        plan(chat(tools=(tool("a", "string"), tool("b", "integer")), tool_choice=required))


def test_only_allowed_tools_are_offered() -> None:
    reading = plan(chat(tools=(WEATHER, NOW), tool_choice=ToolChoice("auto", ("now",)))).reading
    assert reading is not None
    assert list(reading.tools) == ["now"]


def test_ids_of_calls_are_unique_and_the_same_for_the_same_answer() -> None:
    asked = chat(tools=(NOW,))
    first, again = plan(asked).reading, plan(asked).reading
    assert first is not None
    assert again is not None
    ids = [first.call_id(choice, index) for choice in range(3) for index in range(3)]
    assert len(set(ids)) == 9
    assert all(one.startswith("call_") and len(one) <= 40 for one in ids)
    assert ids == [again.call_id(choice, index) for choice in range(3) for index in range(3)]
    short = plan(asked, MISTRAL).reading
    assert short is not None
    assert len(short.call_id(0, 0)) == 9
    assert short.call_id(0, 0).isalnum()


def fields_lost(asked: ChatRequest, template: str) -> list[str]:
    return [loss.field for loss in plan(asked, template).losses]


def test_what_the_model_cannot_do_is_listed() -> None:
    history = (
        Turn("assistant", (Reasoning("hm"), ToolCall(call_id="c", name="now", arguments="{}"))),
        Turn("user", (Text("a"),)),
    )
    assert fields_lost(chat(turns=history), PLAIN) == ["messages[*].tool_calls", "messages[*].reasoning"]
    assert fields_lost(chat(turns=history), THINKER) == []
    effort = ReasoningRequest(effort="high", budget_tokens=5)
    assert fields_lost(chat(reasoning=effort), PLAIN) == ["reasoning.budget_tokens", "reasoning"]
    assert fields_lost(chat(reasoning=ReasoningRequest(effort="high")), THINKER) == []
    assert fields_lost(chat(tools=(NOW,), parallel_tool_calls=False), HERMES) == ["parallel_tool_calls"]
    assert fields_lost(chat(tools=(NOW,)), "{{ tools }}") == ["tools"]
    assert fields_lost(chat(tools=(ToolDef(name="f", strict=True),)), HERMES) == ["tools[*].strict"]
    both = chat(tools=(NOW,), tool_choice=ToolChoice("required"), output=OutputFormat(kind="json_object"))
    assert fields_lost(both, HERMES) == ["response_format"]
