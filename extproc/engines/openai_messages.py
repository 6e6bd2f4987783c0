"""Turns of the neutral form to the messages of OpenAI's Chat Completions, as engines over HTTP take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from extproc.ir import (
    ErrorInfo,
    ErrorKind,
    Hosted,
    Json,
    Media,
    Part,
    Reasoning,
    Refusal,
    RequestError,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)

Message = dict[str, Any]

_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}


def messages_of(turns: Iterable[Turn]) -> list[Message]:
    """The messages. Raises RequestError for what the dialect has no place for."""
    messages: list[Message] = []
    for turn in turns:
        parts = turn.parts
        if len(parts) == 1 and type(part := parts[0]) is Text:
            messages.append(_named({"role": turn.role, "content": part.text}, turn))
        else:
            _add(turn, messages)
    return messages


def _add(turn: Turn, messages: list[Message]) -> None:
    """A turn of several or other parts. Results of tools are messages of their own, in their place."""
    content: list[dict[str, Any]] = []
    thought: list[str] = []
    calls: list[dict[str, Any]] = []
    refusal: list[str] = []
    results = 0
    for part in turn.parts:
        match part:
            case ToolResult():
                if content:
                    messages.append(_named({"role": turn.role, "content": _joined(content)}, turn))
                    content = []
                results += 1
                messages.append(_result(part))
            case Reasoning():
                thought.append(part.text or "\n".join(part.summary))
            case ToolCall():
                calls.append(_call(part))
            case Refusal():
                refusal.append(part.text)
            case _:
                content.append(_content_part(part))
    if results and not content and not calls:
        return
    message: Message = {"role": turn.role, "content": _joined(content) if content or not calls else None}
    reasoning = "\n".join([text for text in thought if text])
    if reasoning:
        # vLLM reads the one, SGLang and llama.cpp the other.
        message["reasoning"] = message["reasoning_content"] = reasoning
    if refusal:
        message["refusal"] = "".join(refusal)
    if calls:
        message["tool_calls"] = calls
    messages.append(_named(message, turn))


def _named(message: Message, turn: Turn) -> Message:
    if turn.name is not None:
        message["name"] = turn.name
    return message


def _joined(content: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Text alone as a string where it is one, for chat templates that take no parts."""
    if not content:
        return ""
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = msgspec.json.encode({"input": call.arguments}).decode() if call.custom else call.arguments
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments or "{}"}}


def _result(result: ToolResult) -> Message:
    said: list[str] = []
    for part in result.parts:
        match part:
            case Text():
                said.append(part.text)
            case Json():
                said.append(msgspec.json.encode(part.value).decode())
            case Media():
                raise _unsupported("The results of tools may hold text only for this model.", part.path or "messages")
    text = "\n".join(said)
    if result.is_error and not text.lstrip()[:8].lower().startswith(("error", '{"error"')):
        text = "Error: " + text  # there is no field for it, and the model must know
    return {"role": "tool", "tool_call_id": result.call_id, "content": text}


def _content_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Json():
            return {"type": "text", "text": msgspec.json.encode(part.value).decode()}
        case Media():
            return _media(part)
        case Hosted():
            raise _unsupported(f"Items of the type '{part.type}' are not supported by this model.", "messages")
        case _:
            raise AssertionError(f"a {type(part).__name__} is no content")


def _media(media: Media) -> dict[str, Any]:
    path = media.path or "messages"
    kind = media.modality
    if kind == "document":
        if media.url is not None:
            raise _unsupported("Documents by URL are not supported by this model.", path)
        file = {"file_id": media.file_id} if media.file_id is not None else {"file_data": _data_url(media)}
        if media.filename is not None:
            file["filename"] = media.filename
        return {"type": "file", "file": file}
    if media.file_id is not None:
        raise _unsupported("Files by id are not supported by this model.", path)
    if kind == "audio" and media.data is not None:
        form = _AUDIO_FORMATS.get(media.mime or "")
        if form is None:
            raise _unsupported("Audio must be audio/wav or audio/mpeg for this model.", path)
        return {"type": "input_audio", "input_audio": {"data": media.data, "format": form}}
    place = {"url": media.url or _data_url(media)}
    if kind == "image" and media.detail is not None:
        place["detail"] = media.detail
    return {"type": f"{kind}_url", f"{kind}_url": place}


def _data_url(media: Media) -> str:
    return f"data:{media.mime or 'application/octet-stream'};base64,{media.data or ''}"


def _unsupported(message: str, param: str) -> RequestError:
    return RequestError(ErrorInfo(kind=ErrorKind.UNSUPPORTED, message=message, param=param, code="unsupported_value"))
