"""Turns of the neutral form to the messages that chat templates read, which look like OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from extproc.ir import (
    UNSET,
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Hosted,
    Json,
    Media,
    Part,
    Reasoning,
    ReasoningRequest,
    Refusal,
    RequestError,
    Text,
    ToolCall,
    ToolDef,
    ToolResult,
    Turn,
)
from extproc.tokens.conversation import Forms, Message, arguments_of

__all__ = ["messages_of", "offered_tools", "reasoning_kwargs", "tools_of"]

_SHORT_ID_CHARS = 9
_NEAREST_EFFORT: Mapping[str, str] = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_CUSTOM_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""A tool that takes any text is a function of one string to templates."""


def messages_of(turns: Iterable[Turn], forms: Forms) -> list[Message]:
    """The messages. Raises RequestError for what no template takes.

    Hot for turns of one text, which most are.
    """
    messages: list[Message] = []
    names: dict[str, str] = {}  # of tools, by the ids of their calls
    for turn in turns:
        parts = turn.parts
        if forms.takes_text and len(parts) == 1 and type(part := parts[0]) is Text:
            message: Message = {"role": turn.role, "content": part.text}
            if turn.name is not None:
                message["name"] = turn.name
            messages.append(message)
        else:
            _add(turn, forms, names, messages)
    return messages


def tools_of(tools: Iterable[ToolDef]) -> list[dict[str, Any]] | None:
    """The tools in the order and with the keys that OpenAI's API has; None where there are none."""
    listed: list[dict[str, Any]] = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.custom:
            function["parameters"] = _CUSTOM_INPUT
        elif tool.parameters is not None:
            function["parameters"] = tool.parameters
        if tool.strict is not None:
            function["strict"] = tool.strict
        listed.append({"type": "function", "function": function})
    return listed or None


def offered_tools(request: ChatRequest) -> tuple[ToolDef, ...]:
    """The tools that the model may know of: none where none may be called, else the allowed ones."""
    choice = request.tool_choice
    if choice.mode == "none":
        return ()
    if not choice.names or choice.mode == "named":
        return request.tools
    return tuple(tool for tool in request.tools if tool.name in choice.names)


def reasoning_kwargs(reasoning: ReasoningRequest, template: str) -> dict[str, Any]:
    """How templates call the wish to think: Qwen and GLM `enable_thinking`, DeepSeek `thinking`, gpt-oss the effort."""
    kwargs: dict[str, Any] = {}
    wanted = reasoning.wanted
    if wanted is not None:
        kwargs["enable_thinking"] = kwargs["thinking"] = wanted
    if reasoning.effort is not UNSET:
        effort: str = reasoning.effort
        # Templates write the word as it is, and models know few.
        if f"'{effort}'" not in template and f'"{effort}"' not in template:
            effort = _NEAREST_EFFORT.get(effort, effort)
        kwargs["reasoning_effort"] = effort
    return kwargs


def _add(turn: Turn, forms: Forms, names: dict[str, str], messages: list[Message]) -> None:
    """A turn of several or other parts. Results of tools are messages of their own, in their place."""
    said: list[str] = []
    thought: list[str] = []
    calls: list[dict[str, Any]] = []
    results = 0
    for part in turn.parts:
        match part:
            case ToolResult():
                if said:
                    messages.append(_message(turn, said, forms))
                    said = []
                results += 1
                messages.append(_result(part, forms, names))
            case Reasoning():
                if not forms.takes_reasoning:
                    continue
                thought.append(part.text or "\n".join(part.summary))
            case ToolCall():
                names[part.call_id] = part.name
                calls.append(_call(part, forms))
            case _:
                said.append(_text_of(part))
    if results and not said and not calls:
        return
    message = _message(turn, said, forms)
    reasoning = "\n".join([text for text in thought if text])
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    messages.append(message)


def _message(turn: Turn, said: list[str], forms: Forms) -> Message:
    message: Message = {"role": turn.role, "content": _content(said, forms)}
    if turn.name is not None:
        message["name"] = turn.name
    return message


def _content(said: list[str], forms: Forms) -> str | list[dict[str, str]]:
    if forms.takes_text and (len(said) <= 1 or not forms.takes_parts):
        # Engines join the parts for such templates with line breaks, too.
        return "\n".join(said)
    return [{"type": "text", "text": text} for text in said]


def _call(call: ToolCall, forms: Forms) -> dict[str, Any]:
    arguments: Any = json.dumps({"input": call.arguments}, ensure_ascii=False) if call.custom else call.arguments
    if forms.argument_objects:
        arguments = arguments_of(arguments)
    return {"id": _id(call.call_id, forms), "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _result(result: ToolResult, forms: Forms, names: dict[str, str]) -> Message:
    said = [_text_of(part) for part in result.parts]
    if result.is_error and not _tells_error("".join(said)):
        # Templates have no field for it, and the model must know.
        said[:1] = ["Error: " + "".join(said[:1])]
    message: Message = {"role": "tool", "content": _content(said, forms), "tool_call_id": _id(result.call_id, forms)}
    name = result.name or names.get(result.call_id)
    if name:
        message["name"] = name
    return message


def _id(call_id: str, forms: Forms) -> str:
    """The call's id; another one for the same id always where it is none that the template takes."""
    if not forms.short_call_ids or (len(call_id) == _SHORT_ID_CHARS and call_id.isascii() and call_id.isalnum()):
        return call_id
    return blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()[:_SHORT_ID_CHARS]


def _tells_error(text: str) -> bool:
    start = text.lstrip()[:24].lower()
    return start.startswith("error") or start.replace(" ", "").startswith(('{"error"', '{"is_error"'))


def _text_of(part: Part) -> str:
    match part:
        case Text() | Refusal():
            return part.text
        case Json():
            return json.dumps(part.value, ensure_ascii=False)
        case Media():
            raise _unsupported(f"This model does not take {_PLURALS[part.modality]}.", part.path or "messages")
        case Hosted():
            raise _unsupported(f"Items of the type '{part.type}' are not supported by this model.", "messages")
        case _:
            raise _unsupported("The results of tools may hold text only for this model.", "messages")


_PLURALS = {"image": "images", "audio": "audio", "video": "videos", "document": "documents as files"}


def _unsupported(message: str, param: str) -> RequestError:
    return RequestError(ErrorInfo(kind=ErrorKind.UNSUPPORTED, message=message, param=param, code="unsupported_value"))
