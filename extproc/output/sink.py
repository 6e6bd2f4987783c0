"""Where parsers of model text put what they find: events of one choice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from extproc.ir import Event, ReasoningDelta, TextDelta, ToolArgsDelta, ToolCallEnd, ToolCallStart, ToolDef

__all__ = ["Sink"]


class Sink:
    """Text, reasoning and calls of one choice, in their order.

    White space around calls belongs to the markup. Calls of custom tools wait until they are whole: what the model
    writes is an object with the tool's input in it.
    """

    __slots__ = (
        "_after_call",
        "_arguments",
        "_call_id",
        "_choice",
        "_name",
        "_spaces",
        "calls",
        "events",
        "in_reasoning",
        "in_text",
        "tools",
    )

    def __init__(self, choice: int, tools: Mapping[str, ToolDef], call_id: Callable[[int, int], str]) -> None:
        """`call_id`: of a choice's call, both from 0 on."""
        self.events: list[Event] = []
        self.tools = tools
        self.calls = 0
        """How many have begun."""
        self.in_text = True
        """What came last is text of the answer."""
        self.in_reasoning = False
        """What came last is reasoning."""
        self._choice = choice
        self._call_id = call_id
        self._name = ""
        self._arguments: list[str] = []
        self._spaces = ""
        self._after_call = False

    def text(self, text: str) -> None:
        """More text of the answer."""
        self.in_text, self.in_reasoning = True, False
        if self._after_call:
            text = text.lstrip()
            if not text:
                return
            self._after_call = False
        body = text.rstrip()
        if body:
            self._say(self._spaces + body)
            self._spaces = text[len(body) :]
        else:
            self._spaces += text

    def reasoning(self, text: str) -> None:
        """More reasoning."""
        self.in_text, self.in_reasoning = False, True
        events = self.events
        if events and type(last := events[-1]) is ReasoningDelta:
            last.text += text
        elif text:
            events.append(ReasoningDelta(self._choice, text))

    def start(self, name: str) -> None:
        """A call begins."""
        self.in_text = self.in_reasoning = False
        self._spaces = ""
        self._after_call = False
        self._name = name
        self._arguments = []
        if not self._custom:
            self.events.append(self._start())

    def arguments(self, text: str) -> None:
        """More of its arguments, as JSON text."""
        if not text:
            return
        self._arguments.append(text)
        if self._custom:
            return
        events = self.events
        if type(last := events[-1] if events else None) is ToolArgsDelta:
            last.text += text
        else:
            events.append(ToolArgsDelta(self._choice, self.calls, text))

    def end(self) -> None:
        """The call is over, complete or broken off."""
        whole = "".join(self._arguments)
        if self._custom:
            whole = _input_of(whole)
            self.events.append(self._start())
            if whole:
                self.events.append(ToolArgsDelta(self._choice, self.calls, whole))
        self.events.append(ToolCallEnd(self._choice, self.calls, whole))
        self.calls += 1
        self._after_call = True

    def finish(self) -> None:
        """The answer is over."""
        if self._spaces:
            self._say(self._spaces)
            self._spaces = ""

    def parameter(self, name: str) -> Any:
        """The schema of a parameter of the tool whose call is open; None where it is not described."""
        tool = self.tools.get(self._name)
        properties = (tool.parameters or {}).get("properties") if tool is not None else None
        return properties.get(name) if isinstance(properties, dict) else None

    def _say(self, text: str) -> None:
        events = self.events
        if events and type(last := events[-1]) is TextDelta:
            last.text += text
        else:
            events.append(TextDelta(self._choice, text))

    @property
    def _custom(self) -> bool:
        tool = self.tools.get(self._name)
        return tool is not None and tool.custom

    def _start(self) -> ToolCallStart:
        index = self.calls
        return ToolCallStart(self._choice, index, self._call_id(self._choice, index), self._name, self._custom)


def _input_of(arguments: str) -> str:
    """The input of a custom tool; the arguments as they are where the model wrote something else."""
    try:
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    found = value.get("input") if isinstance(value, dict) else None
    return found if isinstance(found, str) else arguments
