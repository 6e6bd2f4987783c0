"""What an interaction consists of, contents and steps, to turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.gemini_signatures import read_signature
from extproc.dialects.json_body import BodyLimits, check_depth, check_weight, decode, invalid
from extproc.dialects.opaque_blobs import BadBlobError
from extproc.dialects.tool_arguments import text_of
from extproc.ir import Json, Media, Opaque, Part, Reasoning, Text, ToolCall, ToolResult, Turn

__all__ = ["ITEM_KINDS", "Item", "turns_of"]

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Optional: TypeAlias = Annotated[str | None, "a string"]


class _Text(Struct, tag="text", tag_field="type", forbid_unknown_fields=True, gc=False):
    text: Annotated[str, "a string"]
    annotations: _Anything = UNSET


class _Media(Struct, tag_field="type"):
    data: _Optional = None
    uri: _Optional = None
    mime_type: _Optional = None


class _Image(_Media, tag="image"):
    pass


class _Audio(_Media, tag="audio"):
    pass


class _Video(_Media, tag="video"):
    pass


class _Document(_Media, tag="document"):
    pass


_Content: TypeAlias = _Text | _Image | _Audio | _Video | _Document


class _UserInput(Struct, tag="user_input", tag_field="type", forbid_unknown_fields=True):
    content: Annotated[list[_Content], "an array of contents"]


class _ModelOutput(Struct, tag="model_output", tag_field="type", forbid_unknown_fields=True):
    content: Annotated[list[_Content] | None, "an array of contents"] = None
    error: _Anything = UNSET


class _Thought(Struct, tag="thought", tag_field="type", forbid_unknown_fields=True):
    summary: Annotated[list[_Text] | None, "an array of texts"] = None
    signature: _Optional = None


class _FunctionCall(Struct, tag="function_call", tag_field="type", forbid_unknown_fields=True):
    id: Annotated[str, "a string"]
    name: Annotated[str, "a function's name"]
    arguments: Annotated[Raw, "an object"]


class _FunctionResult(Struct, tag="function_result", tag_field="type", forbid_unknown_fields=True):
    call_id: Annotated[str, "a string"]
    result: Annotated[Raw, "a string, an object or an array of contents"]
    name: _Optional = None
    is_error: Annotated[bool | None, "a boolean"] = None


_Step: TypeAlias = _UserInput | _ModelOutput | _Thought | _FunctionCall | _FunctionResult
Item: TypeAlias = (
    _Text
    | _Image
    | _Audio
    | _Video
    | _Document
    | _UserInput
    | _ModelOutput
    | _Thought
    | _FunctionCall
    | _FunctionResult
)


ITEM_KINDS = "one of " + ", ".join(
    f"'{kind}'"
    for kind in (
        *("text", "image", "audio", "video", "document"),
        *("user_input", "model_output", "thought", "function_call", "function_result"),
    )
)
_SAID = (_UserInput, _ModelOutput)
_OF_MODEL = (_ModelOutput, _Thought, _FunctionCall)
_CONTENTS = msgspec.json.Decoder(list[_Content])
_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_MODALITIES: Mapping[type, Literal["image", "audio", "video", "document"]] = {
    _Image: "image",
    _Audio: "audio",
    _Video: "video",
    _Document: "document",
}


def turns_of(given: str | Item | list[Item], limits: BodyLimits) -> list[Turn]:
    """The conversation. Steps of the same side in a row are one turn. Raises RequestError."""
    if isinstance(given, str):
        return [Turn("user", (Text(given),))]
    items = given if isinstance(given, list) else [given]
    if not items:
        raise invalid("'input' must not be empty.", "input", "empty_array")
    left = limits.max_messages - len(items)
    turns: list[Turn] = []
    last: Literal["user", "assistant"] | None = None
    said: list[Part] = []
    calls: set[str] = set()
    for index, item in enumerate(items):
        if isinstance(item, _SAID):
            left -= len(item.content or ())
        if left < 0:
            most = limits.max_messages
            raise invalid(
                f"Too many steps and contents: at most {most} are allowed.", "input", "array_above_max_length"
            )
        role: Literal["user", "assistant"] = "assistant" if isinstance(item, _OF_MODEL) else "user"
        if role != last:
            if last is not None:
                turns.append(Turn(last, tuple(said) or (Text(""),)))
            last = role
            said = []
        said += _parts(item, f"input[{index}]" if items is given else "input", calls, limits)
    assert last is not None
    turns.append(Turn(last, tuple(said) or (Text(""),)))
    return turns


def _parts(item: Item, path: str, calls: set[str], limits: BodyLimits) -> list[Part]:
    match item:
        case _UserInput() | _ModelOutput():
            return [
                Text(content.text) if type(content) is _Text else _content(content, f"{path}.content[{index}]")
                for index, content in enumerate(item.content or ())
            ]
        case _Thought():
            return _thought(item, path)
        case _FunctionCall():
            calls.add(item.id)
            return [
                ToolCall(call_id=item.id, name=item.name, arguments=text_of(bytes(item.arguments), f"{path}.arguments"))
            ]
        case _FunctionResult():
            if item.call_id not in calls:
                place = f"{path}.call_id"
                message = f"'{place}' names {item.call_id[:64]!r}, which is no call before it."
                raise invalid(message, place, "invalid_value")
            parts = tuple(_result(item, f"{path}.result", limits))
            return [ToolResult(call_id=item.call_id, parts=parts, name=item.name, is_error=bool(item.is_error))]
        case _:
            return [_content(item, path)]


def _content(content: _Content, path: str) -> Text | Media:
    if isinstance(content, _Text):
        return Text(content.text)
    if (content.data is None) == (content.uri is None):
        raise invalid(f"'{path}' needs either 'data' or 'uri'.", path)
    return Media(
        modality=_MODALITIES[type(content)], data=content.data, url=content.uri, mime=content.mime_type, path=path
    )


def _thought(item: _Thought, path: str) -> list[Part]:
    text = "".join([part.text for part in item.summary or ()])
    try:
        found = read_signature(item.signature or "")
    except BadBlobError:
        place = f"{path}.signature"
        raise invalid(f"Invalid '{place}': send it back exactly as it came.", place, "invalid_value") from None
    if isinstance(found, Opaque):
        return [Reasoning(text, opaque=(found,))]
    text = text or found or ""
    return [Reasoning(text)] if text else []


def _result(item: _FunctionResult, path: str, limits: BodyLimits) -> list[Text | Media | Json]:
    raw = item.result
    check_weight(raw, path, limits.max_option_bytes, limits.max_option_containers)
    text = bytes(raw)
    if text.startswith(b"["):
        try:
            contents = _CONTENTS.decode(text)
        except msgspec.ValidationError:
            pass  # any JSON, then
        else:
            return [_content(content, f"{path}[{index}]") for index, content in enumerate(contents)]
    value = decode(_JSON, text, {}, root=path)
    check_depth(value, path, limits)
    return [Text(value) if isinstance(value, str) else Json(value)]
