"""Content parts and tool calls of Chat Completions' messages, as the body holds them and as neutral parts."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.json_body import BodyLimits, decode, descriptions, invalid, too_long
from extproc.dialects.openai_chat_fields import PART_RULES
from extproc.ir import Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall

__all__ = ["ContentPart", "calls_of", "legacy_call_of", "part_of", "thinking_of"]

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_MOST_CALLS = 1024


class ContentPart(Struct, forbid_unknown_fields=True, gc=False):
    """One part of a message's content."""

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
    thinking: Annotated[str | None, "a string"] = None
    signature: Annotated[str | None, "a string"] = None
    data: Annotated[str | None, "a string"] = None


class _Url(Struct):
    url: Annotated[str, "a URL"]
    detail: Annotated[str | None, "a string"] = None


class _Audio(Struct):
    data: Annotated[str, "base64 text"]
    format: Annotated[str, "'wav' or 'mp3'"]


class _File(Struct):
    file_data: Annotated[str | None, "base64 text"] = None
    file_id: Annotated[str | None, "a string"] = None
    filename: Annotated[str | None, "a string"] = None


class _CalledFunction(Struct, forbid_unknown_fields=True):
    name: Annotated[str, "a function's name"]
    arguments: Annotated[str | dict[str, Any], "JSON text"] = ""
    parsed_arguments: Annotated[Raw | UnsetType, "another value"] = UNSET  # the SDK's, made of the arguments


class _CalledCustom(Struct, forbid_unknown_fields=True):
    name: Annotated[str, "a tool's name"]
    input: Annotated[str, "a string"] = ""


class _Call(Struct, forbid_unknown_fields=True):
    id: Annotated[str, "a string"]
    type: Annotated[str | None, "'function' or 'custom'"] = None
    function: Annotated[_CalledFunction | None, "an object"] = None
    custom: Annotated[_CalledCustom | None, "an object"] = None
    index: Annotated[int | None, "an integer"] = None
    extra_content: Annotated[dict[str, Any] | None, "an object"] = None


class _Thinking(Struct):
    type: Annotated[str, "'thinking' or 'redacted_thinking'"]
    thinking: Annotated[str | None, "a string"] = None
    signature: Annotated[str | None, "a string"] = None
    data: Annotated[str | None, "a string"] = None


_URL: msgspec.json.Decoder[_Url | str] = msgspec.json.Decoder(_Url | str)
_AUDIO = msgspec.json.Decoder(_Audio)
_FILE = msgspec.json.Decoder(_File)
_CALLS: msgspec.json.Decoder[list[_Call] | None] = msgspec.json.Decoder(list[_Call] | None)
_LEGACY: msgspec.json.Decoder[_CalledFunction | None] = msgspec.json.Decoder(_CalledFunction | None)
_THINKING: msgspec.json.Decoder[list[_Thinking] | None] = msgspec.json.Decoder(list[_Thinking] | None)
_MEDIA_URLS = {"image_url": "image", "video_url": "video", "audio_url": "audio"}
_ALLOWED: dict[str, str] = {
    "messages[].tool_calls": "an array of tool calls",
    "messages[].function_call": "an object with name and arguments",
    "messages[].thinking_blocks": "an array of thinking blocks",
    "messages[].content[].input_audio": "an object with data and format",
    "messages[].content[].file": "an object with file_data or file_id",
    **descriptions(_Call, "messages[].tool_calls[]."),
    **descriptions(_CalledFunction, "messages[].function_call."),
    **descriptions(_Thinking, "messages[].thinking_blocks[]."),
    **descriptions(_Audio, "messages[].content[].input_audio."),
    **descriptions(_File, "messages[].content[].file."),
}
for _name in _MEDIA_URLS:
    _ALLOWED |= {f"messages[].content[].{_name}": "an object with a url"}
    _ALLOWED |= descriptions(_Url, f"messages[].content[].{_name}.")


def part_of(part: ContentPart, role: str, path: str, losses: Losses, limits: BodyLimits) -> Part:
    """A part in neutral form. Raises RequestError."""
    for name, rule in PART_RULES.items():
        raw = getattr(part, name)
        if raw is not UNSET:
            judge(f"{path}.{name}", raw, rule, losses, limits, kind=f"messages[*].content[*].{name}")
    kind = part.type
    if kind == "text":
        return Text(_needed(part.text, f"{path}.text"))
    if role == "assistant":
        if kind == "refusal":
            return Refusal(_needed(part.refusal, f"{path}.refusal"))
        if kind == "thinking":
            return _thinking(part.thinking, part.signature, None)
        if kind == "redacted_thinking":
            return _thinking(None, None, part.data)
    elif role == "user":
        if kind in _MEDIA_URLS:
            return _media_url(kind, _present(getattr(part, kind), f"{path}.{kind}"), f"{path}.{kind}")
        if kind == "input_audio":
            found = f"{path}.input_audio"
            audio = decode(_AUDIO, _present(part.input_audio, found), _ALLOWED, root=found)
            return Media(modality="audio", data=audio.data, mime=f"audio/{audio.format}", path=f"{path}.type")
        if kind == "file":
            return _file(_present(part.file, f"{path}.file"), f"{path}.file", f"{path}.type")
    expected = {
        "assistant": "'text', 'refusal' or 'thinking'",
        "user": "'text', 'image_url', 'input_audio', 'video_url', 'audio_url' or 'file'",
    }.get(role, "'text'")
    raise invalid(f"Invalid value for '{path}.type': expected {expected}.", f"{path}.type", "invalid_value")


def calls_of(raw: Raw, path: str, losses: Losses, limits: BodyLimits) -> list[Part]:
    """The value of an assistant's `tool_calls`. Raises RequestError."""
    if memoryview(raw).nbytes > limits.max_tools_bytes:
        raise too_long(path, limits.max_tools_bytes)
    calls = decode(_CALLS, raw, _ALLOWED, root=path) or []
    if len(calls) > _MOST_CALLS:
        raise invalid(f"Too many tool calls: at most {_MOST_CALLS} are allowed.", path, "array_above_max_length")
    return [_call(call, f"{path}[{index}]", losses) for index, call in enumerate(calls)]


def legacy_call_of(raw: Raw, path: str, call_id: str, limits: BodyLimits) -> Part | None:
    """The value of an assistant's deprecated `function_call`. Raises RequestError."""
    if memoryview(raw).nbytes > limits.max_tools_bytes:
        raise too_long(path, limits.max_tools_bytes)
    call = decode(_LEGACY, raw, _ALLOWED, root=path)
    return None if call is None else ToolCall(call_id=call_id, name=call.name, arguments=_arguments(call.arguments))


def thinking_of(raw: Raw, path: str, limits: BodyLimits) -> list[Part]:
    """The value of `thinking_blocks`: reasoning with signatures, as other gateways hand it out. Raises RequestError."""
    if memoryview(raw).nbytes > limits.max_tools_bytes:
        raise too_long(path, limits.max_tools_bytes)
    blocks = decode(_THINKING, raw, _ALLOWED, root=path) or []
    return [_thinking(block.thinking, block.signature, block.data) for block in blocks]


def _call(call: _Call, path: str, losses: Losses) -> ToolCall:
    opaque: tuple[Opaque, ...] = ()
    if call.extra_content:
        google = call.extra_content.get("google")
        signature = google.get("thought_signature") if isinstance(google, dict) else None
        if isinstance(signature, str):
            opaque = (Opaque("google", "signature", signature),)
        else:
            losses["messages[*].tool_calls[*].extra_content"] = "only Google's thought signature is understood"
    if call.custom is not None and call.type != "function":
        return ToolCall(call_id=call.id, name=call.custom.name, arguments=call.custom.input, custom=True, opaque=opaque)
    if call.function is None:
        kind = "custom" if call.type == "custom" else "function"
        raise invalid(f"Missing required parameter: '{path}.{kind}'.", f"{path}.{kind}", "missing_required_parameter")
    return ToolCall(
        call_id=call.id, name=call.function.name, arguments=_arguments(call.function.arguments), opaque=opaque
    )


def _arguments(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _thinking(text: str | None, signature: str | None, data: str | None) -> Reasoning:
    opaque: tuple[Opaque, ...] = ()
    if data:
        opaque = (Opaque("anthropic", "redacted", data),)
    elif signature:
        opaque = (Opaque("anthropic", "signature", signature),)
    return Reasoning(text or "", opaque=opaque)


def _media_url(kind: str, raw: Raw, path: str) -> Media:
    found = decode(_URL, raw, _ALLOWED, root=path)
    url, detail = (found, None) if isinstance(found, str) else (found.url, found.detail)
    modality: Any = _MEDIA_URLS[kind]
    place = path.rpartition(".")[0] + ".type"
    mime, data = _inline(url)
    if data is not None:
        return Media(modality=modality, data=data, mime=mime, detail=detail, path=place)
    return Media(modality=modality, url=url, detail=detail, path=place)


def _file(raw: Raw, path: str, place: str) -> Media:
    file = decode(_FILE, raw, _ALLOWED, root=path)
    if file.file_data is not None:
        mime, data = _inline(file.file_data)
        return Media(modality="document", data=data or file.file_data, mime=mime, filename=file.filename, path=place)
    if file.file_id is not None:
        return Media(modality="document", file_id=file.file_id, filename=file.filename, path=place)
    raise invalid(
        f"Missing required parameter: '{path}.file_data' or '{path}.file_id'.", path, "missing_required_parameter"
    )


def _inline(url: str) -> tuple[str | None, str | None]:
    """Type and base64 text of a `data:` URL."""
    if not url.startswith("data:"):
        return None, None
    head, comma, data = url[5:].partition(",")
    mime, _, encoding = head.partition(";")
    return (mime or None, data) if comma and encoding.endswith("base64") else (None, None)


def _needed(text: str | None, path: str) -> str:
    if text is None:
        raise invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
    return text


def _present(raw: Raw | UnsetType, path: str) -> Raw:
    if raw is UNSET:
        raise invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
    return raw
