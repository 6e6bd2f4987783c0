"""A conversation as chat templates see it: plain JSON values, brought into the forms that a template handles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

__all__ = [
    "ODD_NUMBER",
    "Conversation",
    "Forms",
    "Message",
    "TemplateError",
    "arguments_of",
    "cut_at_tag",
    "holds_surrogate",
    "variables",
    "weigh",
]

Message = dict[str, Any]

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# Ends in a space, so that a template that strips the message's end shows it.
_CONTINUE_TAG = "\ue0c1CONTINUE-HERE\ue0c1 "

ODD_NUMBER = 1 << 60
"""The weight of a number that template engines may write differently: 1e22, 1e-7, infinity."""


class TemplateError(Exception):
    """A conversation that the template refuses or cannot render; the message is the template's own where it has one."""


class Conversation(Struct, frozen=True, kw_only=True):
    """What a template renders. Messages hold role, content (a string or parts) and whatever else, as in OpenAI's API.

    Keys of a message that are None count as absent. `kwargs` win over all variables of the same name.
    """

    messages: Sequence[Message]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = {}


class Forms(Struct, frozen=True):
    """Which forms of the same thing a template handles; the defaults are what nearly all take."""

    takes_text: bool = True  # content as a string
    takes_parts: bool = False  # content as a list of parts
    knows_developer: bool = False  # the role
    argument_objects: bool = True  # arguments of tool calls as objects; otherwise as the JSON text that clients send
    takes_reasoning: bool = True  # of earlier turns, or leaves it out without a word
    short_call_ids: bool = False  # ids of calls must be nine letters and digits, as Mistral's are


def variables(conversation: Conversation, forms: Forms) -> dict[str, Any]:
    """The template's variables, special tokens aside. Shares values with the conversation. Raises TemplateError."""
    if not conversation.messages:
        raise TemplateError("the conversation is empty")
    prepared = [_prepare(message, forms) for message in conversation.messages]
    if conversation.continue_final_message:
        if conversation.add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other")
        prepared[-1] = _tag_end(prepared[-1])
    return {
        "messages": prepared,
        "tools": conversation.tools,
        "documents": conversation.documents,
        "add_generation_prompt": conversation.add_generation_prompt,
        **conversation.kwargs,
    }


def _prepare(message: Message, forms: Forms) -> Message:
    if len(message) == 2 and message.get("content") is not None and message.get("role") != "developer":
        return message
    prepared = {key: value for key, value in message.items() if value is not None}
    for key in _REASONING_KEYS:
        if key in prepared:
            # Templates name it differently; whichever the client sent, both common names are there.
            reasoning = prepared[key]
            prepared["reasoning_content"] = reasoning
            prepared.setdefault("thinking", reasoning)
            break
    if prepared.get("role") == "developer" and not forms.knows_developer:
        prepared["role"] = "system"
    calls = prepared.get("tool_calls")
    if forms.argument_objects and isinstance(calls, list):
        prepared["tool_calls"] = [_with_argument_object(call) for call in calls]
    return prepared


def _with_argument_object(call: Any) -> Any:
    """The call with its arguments as an object. What is no JSON object stays text: models do write broken JSON."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    return {**call, "function": {**function, "arguments": arguments_of(arguments)}}


def arguments_of(text: str) -> dict[str, Any] | str:
    """The object that the JSON text of a call's arguments holds; the text where it holds none."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _tag_end(message: Message) -> Message:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUE_TAG}
    if isinstance(content, list):
        for at in range(len(content) - 1, -1, -1):
            part = content[at]
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                tagged = {**part, "text": part["text"] + _CONTINUE_TAG}
                return {**message, "content": [*content[:at], tagged, *content[at + 1 :]]}
    raise TemplateError("continue_final_message is set, but the final message has no text to continue")


def cut_at_tag(text: str) -> str:
    """The rendering of a continued conversation up to the end of its final message. Raises TemplateError."""
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0:
        raise TemplateError("continue_final_message is set, but the chat template drops the final message")
    if text.startswith(_CONTINUE_TAG, at):
        return text[:at]
    return text[:at].rstrip()  # the template strips messages, so it would have stripped this one


def weigh(value: Any) -> int:
    """About how many characters a JSON value has when it is written out; from ODD_NUMBER on it holds such a number."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is dict:
        weight = 2
        for key, item in value.items():
            weight += len(key) + 4 + weigh(item)
        return weight
    if kind is list:
        weight = 2
        for item in value:
            weight += weigh(item) + 2
        return weight
    if kind is float and value and not 1e-4 <= abs(value) < 1e16:
        return ODD_NUMBER
    return 6


def holds_surrogate(value: Any) -> bool:
    """Whether a JSON value has half of a surrogate pair in a text, which is not Unicode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
