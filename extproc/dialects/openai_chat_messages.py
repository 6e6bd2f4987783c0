"""Messages of Chat Completions to turns: text in every role that holds text, everything else refused by its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.json_body import BodyLimits, decode, invalid, too_long, unsupported
from extproc.dialects.openai_chat_fields import MESSAGE_RULES, PART_RULES, Rule
from extproc.ir import Loss, Text, Turn

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_TextRole: TypeAlias = Literal["system", "developer", "user", "assistant"]

_ROLES: Mapping[str, _TextRole] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
}
_LATER_ROLES = frozenset(("tool", "function"))
_LATER_PARTS = frozenset(("image_url", "input_audio", "file", "video_url", "audio_url", "input_image"))
_JUDGED_VALUE_BYTES = 128  # neutral values are far shorter


class ContentPart(Struct, forbid_unknown_fields=True, gc=False):
    """One part of a message's content.

    The payloads of other kinds are named here, so that what is refused is the kind and not its payload's name.
    """

    type: Annotated[str, "'text'"]
    text: Annotated[str | None, "a string"] = None
    refusal: Annotated[str | None, "a string"] = None
    prompt_cache_breakpoint: _Anything = UNSET
    cache_control: _Anything = UNSET
    image_url: _Anything = UNSET
    input_audio: _Anything = UNSET
    file: _Anything = UNSET
    video_url: _Anything = UNSET
    audio_url: _Anything = UNSET


class Message(Struct, forbid_unknown_fields=True, gc=False):
    """One message as the body holds it."""

    role: Annotated[str, "one of 'system', 'developer', 'user' and 'assistant'"]
    content: Annotated[str | list[ContentPart] | None, "a string or an array of text parts"] = None
    name: Annotated[str | None, "a string"] = None
    refusal: Annotated[str | None, "a string"] = None
    tool_calls: _Anything = UNSET
    function_call: _Anything = UNSET
    tool_call_id: _Anything = UNSET
    audio: _Anything = UNSET
    annotations: _Anything = UNSET
    reasoning_content: _Anything = UNSET
    reasoning: _Anything = UNSET


_RARE_MESSAGE_FIELDS = Message.__struct_fields__[4:]
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


Losses: TypeAlias = dict[str, str]
"""What does not reach the engine, each kind of field once, such as `messages[*].annotations`, with the reason."""


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
        ):
            if type(content) is list:
                parts_left -= len(content)
                if parts_left < 0:
                    raise invalid(
                        f"Too many parts of content: at most {limits.max_messages} are allowed in a conversation.",
                        f"messages[{index}].content",
                        "array_above_max_length",
                    )
            turns.append(_unusual(message, f"messages[{index}]", losses, limits))
        else:
            turns.append(Turn(role, (Text(content),), message.name))
    return tuple(turns)


def judge(path: str, raw: Raw, rule: Rule, losses: Losses, limits: BodyLimits, *, kind: str | None = None) -> None:
    """Apply a rule to a field that is present. Adds to `losses`, as `kind`; raises RequestError.

    Values that no rule names are judged by their length alone: they are not decoded.
    """
    view = memoryview(raw)
    # Too long for any value that a rule names.
    text = bytes(view) if view.nbytes <= _JUDGED_VALUE_BYTES else None
    if text == b"null":
        return
    value = decode(_ANY, text, {}, root=path) if text is not None and (rule.neutral or rule.only) else UNSET
    if value in rule.neutral:
        return
    if rule.loss is None:
        raise unsupported(rule.refusal or f"Unsupported parameter: '{path}' is not supported.", path)
    if view.nbytes > limits.max_option_bytes:
        raise too_long(path, limits.max_option_bytes)
    if rule.only is not None and value not in rule.only:
        raise unsupported(f"This value of '{path}' is not supported.", path, "unsupported_value")
    losses[kind or path] = rule.loss


def _unusual(message: Message, path: str, losses: Losses, limits: BodyLimits) -> Turn:
    """Everything but a plain string by a plain role."""
    role = _ROLES.get(message.role)
    if role is None:
        if message.role in _LATER_ROLES:
            raise unsupported(
                f"Messages of the role '{message.role}' are not supported.", f"{path}.role", "unsupported_value"
            )
        raise invalid(
            f"Invalid value for '{path}.role': expected one of 'system', 'developer', 'user' and 'assistant'.",
            f"{path}.role",
            "invalid_value",
        )
    for name in _RARE_MESSAGE_FIELDS:
        raw = getattr(message, name)
        if raw is not UNSET:
            judge(f"{path}.{name}", raw, MESSAGE_RULES[name], losses, limits, kind=f"messages[*].{name}")
    content = message.content
    if role == "assistant":
        if message.refusal and not content:
            # What the assistant said in that turn was its refusal.
            return Turn(role, (Text(message.refusal),), message.name)
    elif message.refusal is not None:
        raise invalid(
            f"'{path}.refusal' is allowed in messages of the role 'assistant' only.", f"{path}.refusal", "invalid_value"
        )
    if content is None:
        raise invalid(f"Missing required parameter: '{path}.content'.", f"{path}.content", "missing_required_parameter")
    if isinstance(content, str):
        return Turn(role, (Text(content),), message.name)
    if not content:
        raise invalid(
            f"Invalid value for '{path}.content': expected a string or a non-empty array of text parts.",
            f"{path}.content",
            "empty_array",
        )
    parts = tuple(
        _text_of(part, role, f"{path}.content[{index}]", losses, limits) for index, part in enumerate(content)
    )
    return Turn(role, parts, message.name)


def _text_of(part: ContentPart, role: _TextRole, path: str, losses: Losses, limits: BodyLimits) -> Text:
    if part.type == "text":
        text, field = part.text, "text"
    elif part.type == "refusal" and role == "assistant":
        text, field = part.refusal, "refusal"
    elif part.type in _LATER_PARTS:
        raise unsupported(
            f"Content parts of the type '{part.type}' are not supported, only 'text'.",
            f"{path}.type",
            "unsupported_value",
        )
    else:
        raise invalid(f"Invalid value for '{path}.type': expected 'text'.", f"{path}.type", "invalid_value")
    if text is None:
        raise invalid(f"Missing required parameter: '{path}.{field}'.", f"{path}.{field}", "missing_required_parameter")
    for name, rule in PART_RULES.items():
        raw = getattr(part, name)
        if raw is not UNSET:
            judge(f"{path}.{name}", raw, rule, losses, limits, kind=f"messages[*].content[*].{name}")
    return Text(text)
