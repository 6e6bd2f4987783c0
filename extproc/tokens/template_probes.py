"""The fixed conversations on which both template engines are compared, and the long ones that measure their cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from extproc.tokens.conversation import Conversation

__all__ = ["long_conversation", "probe_conversations"]

Message = dict[str, Any]


def _said(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def _call(name: str, arguments: str, at: int = 0) -> dict[str, Any]:
    return {"id": f"call{at:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


_USER = _said("user", "What is the weather?")
_SYSTEM = _said("system", "You are brief. ")
_ANSWER = _said("assistant", "It is sunny.")
_RICH_ARGUMENTS = (
    '{"city": "Zürich <&\'\\">", "days": 3, "deep": {"list": [1, 2.5, "x", null, true], "none": null, "empty": {}}, '
    '"flag": false, "big": 1234567890123456789012, "ratio": 0.1, "text": "line\\nbreak\\t\\\\ \\u0000"}'
)
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, <b>now</b> & 'later'.\nSecond line: ü 你好.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'A "city".'},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
                "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14.5, "nullable": True},
                "places": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"}}}},
                "any": {"anyOf": [{"type": "string"}, {"type": "integer"}], "$ref": "#/defs/any"},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
_BARE_TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
_BARER_TOOL = {"type": "function", "function": {"name": "ping", "description": ""}}
_TOOLS: list[dict[str, Any]] = [_WEATHER, _BARE_TOOL]

_ONE_CALL = _said("assistant", "", tool_calls=[_call("get_weather", '{"city": "Bern"}')])
_NULL_CALL = _said("assistant", None, tool_calls=[_call("get_weather", _RICH_ARGUMENTS)])
_TWO_CALLS = _said("assistant", "Both.", tool_calls=[_call("get_weather", _RICH_ARGUMENTS, 1), _call("now", "{}", 2)])
_RESULT = _said("tool", '{"degrees": 21.5, "sky": "clear <&>"}', tool_call_id="call00000", name="get_weather")
_RESULTS = (
    _said("tool", "21 degrees", tool_call_id="call00001"),
    _said("tool", "", tool_call_id="call00002"),
)

_TALKS: tuple[tuple[Message, ...], ...] = (
    (_USER,),
    (_SYSTEM, _USER),
    (_said("system", ""), _USER),
    (_SYSTEM, _USER, _ANSWER, _said("user", "And tomorrow?")),
    (_USER, _ANSWER, _said("user", "Thanks"), _said("assistant", "You are welcome.\n"), _said("user", "Bye")),
    (_USER, _ANSWER),
    (_said("user", ""), _said("assistant", ""), _said("user", " ")),
    (
        _said(
            "user", "  <b>naïve & 'quoted' \"text\"</b>\r\n\t{{ x }} {% y %} 你好 \U0001f600 e\u0301\u00a0\u2028 \x00 "
        ),
    ),
    (_said("developer", "Be brief."), _USER),
    (_said("user", "hi", name="ann"), _said("assistant", "ho", refusal=None, audio=None)),
    (_said("assistant", "I begin."), _USER),
    (_USER, _SYSTEM, _said("user", "again"), _said("user", "and again")),
    (_said("user", [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]),),
    (_said("system", [{"type": "text", "text": "s"}]), _said("user", [{"type": "text", "text": "one"}]), _ANSWER),
    (_USER, _said("assistant", "<think>\nhm\n</think>\n\nSunny."), _said("user", "Sure?")),
    (_USER, _said("assistant", "Sunny.", reasoning_content="It looked\nso. "), _said("user", "Sure?")),
    (_USER, _said("assistant", "", reasoning_content="Only thought."), _USER),
    (_USER, _said("assistant", None), _USER),
)
_TOOL_TALKS: tuple[tuple[Message, ...], ...] = (
    (_USER,),
    (_SYSTEM, _USER),
    (_USER, _ONE_CALL, _RESULT),
    (_SYSTEM, _USER, _NULL_CALL, _RESULT, _ANSWER, _said("user", "More.")),
    (_USER, _TWO_CALLS, *_RESULTS),
    (_USER, _TWO_CALLS, *_RESULTS, _ANSWER, _USER, _ONE_CALL, _RESULT),
    (_USER, {**_ONE_CALL, "reasoning_content": "Let me look."}, _RESULT),
    (_USER, {**_NULL_CALL, "reasoning": "Look."}, _RESULT, {**_TWO_CALLS, "thinking": "Again."}, *_RESULTS),
    (_USER, _said("assistant", "", tool_calls=[_call("get_weather", '{"city": "Be')]), _RESULT),
    (_USER, _said("assistant", "", tool_calls=[_call("now", "")]), _said("tool", [{"type": "text", "text": "12:00"}])),
    (_USER, _said("assistant", "x", tool_calls=[])),
)
_DOCUMENTS = [{"title": "Weather", "text": "Sunny <today> & 'dry'."}, {"title": "Ünï", "text": ""}]
_KWARGS: tuple[dict[str, Any], ...] = (
    {"enable_thinking": False, "thinking": False},
    {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "preserve_thinking": True},
    {"reasoning_effort": "low", "custom": {"a": [1, None, "x"]}, "date_string": "1 Jan 2026"},
)


def probe_conversations() -> Iterator[Conversation]:
    """About 120 small conversations: every role, tool calls and results, reasoning, parts, options, odd characters."""
    for talk, begins in product(_TALKS, (True, False)):
        yield Conversation(messages=talk, add_generation_prompt=begins)
    for talk, begins in product(_TOOL_TALKS, (True, False)):
        yield Conversation(messages=talk, tools=_TOOLS, add_generation_prompt=begins)
    for talk in _TOOL_TALKS[2:]:
        yield Conversation(messages=talk)
    for kwargs, talk in product(_KWARGS, (_TALKS[3], _TALKS[15])):
        yield Conversation(messages=talk, kwargs=kwargs)
    for kwargs, talk in product(_KWARGS, (_TOOL_TALKS[5], _TOOL_TALKS[7])):
        yield Conversation(messages=talk, tools=_TOOLS, kwargs=kwargs)
    for talk in (_TALKS[0], _TALKS[3]):
        yield Conversation(messages=talk, documents=_DOCUMENTS)
        yield Conversation(messages=talk, documents=_DOCUMENTS, tools=_TOOLS)
        yield Conversation(messages=talk, tools=[_BARER_TOOL])
        yield Conversation(messages=talk, tools=[])
    for talk in (_TALKS[5], _TALKS[9], (_USER, {**_ANSWER, "reasoning_content": "r"})):
        yield Conversation(messages=talk, add_generation_prompt=False, continue_final_message=True)


def long_conversation(messages: int, characters: int, *, tools: bool) -> Conversation:
    """A conversation that ends with the user, of this many messages (or one more) of this many characters each."""
    text = ("So it goes, and on. " * (characters // 20 + 1))[:characters]
    rounds: list[Message] = []
    while len(rounds) + 1 < messages:
        rounds.append(_said("user", text))
        if tools:
            rounds.append(_ONE_CALL)
            rounds.append(_said("tool", text, tool_call_id="call00000", name="get_weather"))
        rounds.append(_said("assistant", text, reasoning_content=text) if tools else _said("assistant", text))
    return Conversation(messages=[*rounds, _said("user", text)], tools=_TOOLS if tools else None)
