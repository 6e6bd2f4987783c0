"""Messages of Chat Completions to turns. What cannot be carried is refused by its path, or listed as lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.json_body import BodyLimits, decode, invalid
from extproc.dialects.openai_chat_fields import MESSAGE_RULES
from extproc.dialects.openai_chat_parts import ContentPart, calls_of, legacy_call_of, part_of, thinking_of
from extproc.ir import Loss, Media, Part, Reasoning, Refusal, Text, ToolCall, ToolResult, Turn

__all__ = ["ContentPart", "Losses", "Message", "judge", "listed", "turns_of"]

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Role: TypeAlias = Literal["system", "developer", "user", "assistant"]

_ROLES: Mapping[str, _Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}
_ALL_ROLES = "'system', 'developer', 'user', 'assistant' and 'tool'"


class Message(Struct, forbid_unknown_fields=True, gc=False):
    """One message as the body holds it."""

    role: Annotated[str, f"one of {_ALL_ROLES}"]
    content: Annotated[str | list[ContentPart] | None, "a string or an array of parts"] = None
    name: Annotated[str | None, "a string"] = None
    refusal: Annotated[str | None, "a string"] = None
    tool_calls: _Anything = UNSET
    function_call: _Anything = UNSET
    tool_call_id: _Anything = UNSET
    audio: _Anything = UNSET
    annotations: _Anything = UNSET
    reasoning_content: _Anything = UNSET
    reasoning: _Anything = UNSET
    reasoning_details: _Anything = UNSET
    thinking_blocks: _Anything = UNSET
    parsed: _Anything = UNSET  # what the SDK's helpers made of the content; it adds nothing


_RARE_MESSAGE_FIELDS = tuple(name for name in Message.__struct_fields__[4:] if name in MESSAGE_RULES)
_ONLY_OF_ASSISTANT = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking_blocks")
_OPTIONAL_TEXT: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)


def listed(losses: Losses) -> tuple[Loss, ...]:
    """In the order in which they came."""
    return tuple([Loss(field, reason) for field, reason in losses.items()]) if losses else ()


def turns_of(messages: list[Message], losses: Losses, limits: BodyLimits) -> tuple[Turn, ...]:
    """The conversation. Adds to `losses`; raises RequestError with the path of what cannot be carried.

    Hot: a long conversation passes here message by message.
    """
    if len(messages) > limits.max_messages:
        raise invalid(
            f"Too many messages: at most {limits.max_messages} are allowed.", "messages", "array_above_max_length"
        )
    turns: list[Turn] = []
    parts_left = limits.max_messages
    called: dict[str, str] = {}  # names of tools, by the ids of their calls
    for index, message in enumerate(messages):
        role = _ROLES.get(message.role)
        content = message.content
        if (
            role is None
            or type(content) is not str
            or message.refusal is not None
            or message.tool_calls is not UNSET
            or message.function_call is not UNSET
            or message.tool_call_id is not UNSET
            or message.audio is not UNSET
            or message.annotations is not UNSET
            or message.reasoning_content is not UNSET
            or message.reasoning is not UNSET
            or message.reasoning_details is not UNSET
            or message.thinking_blocks is not UNSET
        ):
            if type(content) is list:
                parts_left -= len(content)
                if parts_left < 0:
                    raise invalid(
                        f"Too many parts of content: at most {limits.max_messages} are allowed in a conversation.",
                        f"messages[{index}].content",
                        "array_above_max_length",
                    )
            turns.append(_unusual(message, f"messages[{index}]", called, losses, limits))
        else:
            turns.append(Turn(role, (Text(content),), message.name))
    return tuple(turns)


def _unusual(message: Message, path: str, called: dict[str, str], losses: Losses, limits: BodyLimits) -> Turn:
    """Everything but a plain string by a plain role."""
    role = _ROLES.get(message.role)
    for name in _RARE_MESSAGE_FIELDS:
        raw = getattr(message, name)
        if raw is not UNSET:
            judge(f"{path}.{name}", raw, MESSAGE_RULES[name], losses, limits, kind=f"messages[*].{name}")
    if role is None:
        if message.role in ("tool", "function"):
            return _result(message, path, called, losses, limits)
        raise invalid(
            f"Invalid value for '{path}.role': expected one of {_ALL_ROLES}.", f"{path}.role", "invalid_value"
        )
    if role == "assistant":
        return _answer(message, path, called, losses, limits)
    if message.refusal is not None:
        raise invalid(
            f"'{path}.refusal' is allowed in messages of the role 'assistant' only.", f"{path}.refusal", "invalid_value"
        )
    for name in _ONLY_OF_ASSISTANT:
        if not _is_absent(getattr(message, name)):
            raise invalid(
                f"'{path}.{name}' is allowed in messages of the role 'assistant' only.",
                f"{path}.{name}",
                "invalid_value",
            )
    if not _is_absent(message.tool_call_id):
        raise invalid(
            f"'{path}.tool_call_id' is allowed in messages of the role 'tool' only.",
            f"{path}.tool_call_id",
            "invalid_value",
        )
    return Turn(role, _content(message, role, path, losses, limits), message.name)


def _answer(message: Message, path: str, called: dict[str, str], losses: Losses, limits: BodyLimits) -> Turn:
    """What the assistant said: reasoning, text, calls, in this order, for the message does not tell another."""
    parts: list[Part] = []
    if message.thinking_blocks is not UNSET:
        parts += thinking_of(message.thinking_blocks, f"{path}.thinking_blocks", limits)
    reasoning = _text(message.reasoning_content, f"{path}.reasoning_content")
    reasoning = reasoning or _text(message.reasoning, f"{path}.reasoning")
    if reasoning and not any(type(part) is Reasoning and part.text for part in parts):
        parts.append(Reasoning(reasoning))
    calls: list[Part] = []
    if message.tool_calls is not UNSET:
        calls += calls_of(message.tool_calls, f"{path}.tool_calls", losses, limits)
    if message.function_call is not UNSET:
        call = legacy_call_of(message.function_call, f"{path}.function_call", f"call_{len(called)}", limits)
        if call is not None:
            calls.append(call)
    for call in calls:
        if type(call) is ToolCall:
            called[call.call_id] = call.name
    if message.content:
        parts += _content(message, "assistant", path, losses, limits)
    elif message.content == "" and not calls and not message.refusal:
        parts.append(Text(""))
    if message.refusal:
        parts.append(Refusal(message.refusal))
    parts += calls
    if not parts:
        if message.content == []:
            _content(message, "assistant", path, losses, limits)
        raise _missing(f"{path}.content")
    return Turn("assistant", tuple(parts), message.name)


def _result(message: Message, path: str, called: dict[str, str], losses: Losses, limits: BodyLimits) -> Turn:
    """What a tool said, or a function by the deprecated form."""
    if message.role == "function":
        if not message.name:
            raise _missing(f"{path}.name")
        call_id = next((one for one, name in reversed(called.items()) if name == message.name), None)
        if call_id is None:
            raise invalid(f"'{path}' is the result of a function that was not called before.", path, "invalid_value")
    else:
        call_id = _text(message.tool_call_id, f"{path}.tool_call_id")
        if call_id is None:
            raise _missing(f"{path}.tool_call_id")
        if call_id not in called:
            raise invalid(
                f"'{path}.tool_call_id' names no tool call of an earlier message.",
                f"{path}.tool_call_id",
                "invalid_value",
            )
    parts = tuple(
        part
        for part in _content(message, "tool", path, losses, limits)
        if isinstance(part, Text | Media)  # those that this role may have
    )
    return Turn("tool", (ToolResult(call_id=call_id, parts=parts, name=called[call_id]),))


def _content(message: Message, role: str, path: str, losses: Losses, limits: BodyLimits) -> tuple[Part, ...]:
    content = message.content
    if content is None:
        raise _missing(f"{path}.content")
    if isinstance(content, str):
        return (Text(content),)
    if not content:
        raise invalid(
            f"Invalid value for '{path}.content': expected a string or a non-empty array of parts.",
            f"{path}.content",
            "empty_array",
        )
    return tuple(part_of(part, role, f"{path}.content[{index}]", losses, limits) for index, part in enumerate(content))


def _text(raw: Raw | UnsetType, path: str) -> str | None:
    return None if raw is UNSET else decode(_OPTIONAL_TEXT, raw, {path: "a string"}, root=path)


def _is_absent(raw: Raw | UnsetType) -> bool:
    if raw is UNSET:
        return True
    view = memoryview(raw)
    return view.nbytes <= 4 and bytes(view) in (b"null", b"[]", b'""')


def _missing(path: str) -> Exception:
    return invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
