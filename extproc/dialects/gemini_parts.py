"""Contents of Gemini's requests to turns, their parts in order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.gemini_fields import PART_RULES, RESPONSE_RULES
from extproc.dialects.gemini_json import camel, in_both_cases, in_both_cases_later, unite
from extproc.dialects.gemini_signatures import read_signature
from extproc.dialects.json_body import BodyLimits, free_object, invalid
from extproc.dialects.opaque_blobs import BadBlobError
from extproc.dialects.tool_arguments import text_of
from extproc.dialects.waiting_calls import WaitingCalls
from extproc.ir import Json, Media, Opaque, Part, Reasoning, RequestError, Text, ToolCall, ToolResult, Turn

__all__ = ["Content", "PartReader", "PlainContent"]

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Optional: TypeAlias = Annotated[str | None, "a string"]
_Role: TypeAlias = Literal["user", "assistant"]


@in_both_cases
class Blob(Struct, rename="camel", forbid_unknown_fields=True):
    """`inlineData`"""

    data: Annotated[str, "base64 text"]
    mime_type: _Optional = None
    display_name: _Optional = None


@in_both_cases
class FileData(Struct, rename="camel", forbid_unknown_fields=True):
    """`fileData`"""

    file_uri: _Optional = None
    mime_type: _Optional = None
    display_name: _Optional = None


@in_both_cases
class FunctionCall(Struct, rename="camel", forbid_unknown_fields=True):
    """`functionCall`"""

    name: Annotated[str, "a function's name"]
    id: _Optional = None
    args: _Anything = UNSET
    partial_args: _Anything = UNSET
    will_continue: _Anything = UNSET


@in_both_cases
class ResponsePart(Struct, rename="camel", forbid_unknown_fields=True):
    """A part of `functionResponse`"""

    inline_data: Annotated[Blob | None, "an object"] = None
    file_data: Annotated[FileData | None, "an object"] = None
    media_processing: _Anything = UNSET
    media_resolution: _Anything = UNSET
    video_metadata: _Anything = UNSET
    document_metadata: _Anything = UNSET
    spreadsheet_metadata: _Anything = UNSET
    audio_metadata: _Anything = UNSET


@in_both_cases
class FunctionResponse(Struct, rename="camel", forbid_unknown_fields=True):
    """`functionResponse`"""

    name: Annotated[str, "a function's name"]
    response: Annotated[Raw | UnsetType, "an object"] = UNSET
    id: _Optional = None
    parts: Annotated[list[ResponsePart] | None, "an array of parts"] = None
    scheduling: _Anything = UNSET
    will_continue: _Anything = UNSET


class CommonPart(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """One part, which holds one of `text`, `functionCall`, `functionResponse`, `inlineData` and `fileData`."""

    text: _Optional = None
    thought: Annotated[bool | None, "a boolean"] = None
    thought_signature: _Optional = None
    function_call: Annotated[FunctionCall | None, "an object with a name and args"] = None
    function_response: Annotated[FunctionResponse | None, "an object with a name and a response"] = None
    inline_data: Annotated[Blob | None, "an object with mimeType and data"] = None
    file_data: Annotated[FileData | None, "an object with mimeType and fileUri"] = None


@in_both_cases_later
class ContentPart(CommonPart, rename="camel", forbid_unknown_fields=True, gc=False):
    """A part with all that may stand beside its data."""

    executable_code: _Anything = UNSET
    code_execution_result: _Anything = UNSET
    tool_call: _Anything = UNSET
    tool_response: _Anything = UNSET
    video_metadata: _Anything = UNSET
    media_resolution: _Anything = UNSET
    media_processing: _Anything = UNSET
    part_metadata: _Anything = UNSET
    audio_transcription: _Anything = UNSET
    audio_metadata: _Anything = UNSET
    speech_metadata: _Anything = UNSET
    document_metadata: _Anything = UNSET
    spreadsheet_metadata: _Anything = UNSET


PlainPart = in_both_cases_later(CommonPart)
"""A part with its data alone, as nearly all are: it takes a third of the time to read."""


class Content(Struct, forbid_unknown_fields=True, gc=False):
    """What one side says. Google's servers take a part where an array of them belongs."""

    parts: Annotated[list[ContentPart] | ContentPart | None, "an array of parts"] = None
    role: Annotated[Literal["user", "model", "function", ""] | None, "'user' or 'model'"] = None


class PlainContent(Struct, forbid_unknown_fields=True, gc=False):
    """The same of plain parts."""

    parts: list[PlainPart] | PlainPart | None = None  # type: ignore[valid-type]
    role: Literal["user", "model", "function", ""] | None = None


_JUDGED = tuple(PART_RULES)
_OF_RESPONSES = tuple(RESPONSE_RULES)
_DATA = ("function_call", "function_response", "inline_data", "file_data")
_SHOWN_CHARS = 64


class PartReader:
    """Reads the parts of one request: knows which functions wait for results, counts, notes what is lost."""

    def __init__(self, losses: Losses, limits: BodyLimits) -> None:
        self._losses = losses
        self._limits = limits
        self._left = limits.max_messages
        self._calls = 0
        self._waiting = WaitingCalls()
        self._plain = ContentPart()  # what a part with nothing but a text is equal to; to make one takes longer

    def turns(self, contents: Sequence[Content | PlainContent]) -> list[Turn]:
        """The conversation. Contents of the same role in a row are one turn, as streams are sent back piece by piece.

        Raises RequestError with the path of what cannot be carried. Hot: a long conversation passes here.
        """
        turns: list[Turn] = []
        last: _Role | None = None
        said: list[Part] = []
        left = self._left
        for index, content in enumerate(contents):
            role: _Role = "assistant" if content.role == "model" else "user"
            given = content.parts
            if (
                type(given) is list
                and len(given) == 1
                and left > 0
                and (text := (part := given[0]).text)
                and part == type(part)(text)
            ):
                left -= 1
                parts: list[Part] = [Text(text)]
            else:
                self._left = left
                parts = self.parts(content, role, f"contents[{index}]")
                left = self._left
            if role != last:
                if last is not None:
                    turns.append(Turn(last, (said[0],)) if len(said) == 1 else _turn(last, said))
                last = role
                said = parts
            else:
                said += parts
        if last is not None:
            turns.append(_turn(last, said))
        self._left = left
        return turns

    def parts(self, content: Content | PlainContent, role: _Role | Literal["system"], path: str) -> list[Part]:
        """Raises RequestError with the path of what cannot be carried."""
        given = content.parts
        if not given:
            if role == "assistant":
                return []
            raise invalid(f"'{path}.parts' must be a non-empty array of parts.", f"{path}.parts", "empty_array")
        if not isinstance(given, list):
            given = [given]
        self._count(len(given), f"{path}.parts")
        parts: list[Part] = []
        plain = self._plain
        for index, part in enumerate(given):
            text = plain.text = part.text
            if text is not None and part == plain:
                if text:
                    parts.append(Text(text))
            else:
                self._add(unite(part), role, f"{path}.parts[{index}]", parts)
        return parts

    def _count(self, parts: int, path: str) -> None:
        self._left -= parts
        if self._left < 0:
            most = self._limits.max_messages
            raise invalid(
                f"Too many parts: at most {most} are allowed in a conversation.", path, "array_above_max_length"
            )

    def _add(self, part: CommonPart, role: str, path: str, parts: list[Part]) -> None:
        for name in _JUDGED if isinstance(part, ContentPart) else ():
            raw = getattr(part, name)
            if raw is not UNSET:
                kind = f"parts[*].{camel(name)}"
                judge(f"{path}.{camel(name)}", raw, PART_RULES[name], self._losses, self._limits, kind=kind)
        held = [name for name in _DATA if getattr(part, name) is not None]
        if len(held) + (part.text is not None) > 1:
            raise invalid(f"'{path}' must hold one kind of data only.", path)
        own = self._signature(part, role, path, parts)
        if part.text is not None:
            if part.thought and role == "assistant":
                parts.append(Reasoning(part.text, opaque=own))
            elif part.text:
                parts.append(Text(part.text, own))
            elif own:
                parts.append(Reasoning(opaque=own))
        elif part.function_call is not None:
            parts.append(self._call(part.function_call, role, f"{path}.functionCall", own))
        elif part.function_response is not None:
            parts.append(self._response(part.function_response, role, f"{path}.functionResponse"))
        elif part.inline_data is not None:
            parts.append(_inline(part.inline_data, f"{path}.inlineData"))
        elif part.file_data is not None:
            parts.append(_file(part.file_data, f"{path}.fileData"))
        elif own:
            parts.append(Reasoning(opaque=own))
        elif part.thought_signature is None:
            raise invalid(f"'{path}' holds no data.", path)

    def _signature(self, part: CommonPart, role: str, path: str, parts: list[Part]) -> tuple[Opaque, ...]:
        """Google's own, for the part itself. What others' hold comes before the part."""
        if part.thought_signature is None or role != "assistant":
            return ()
        try:
            found = read_signature(part.thought_signature)
        except BadBlobError:
            place = f"{path}.thoughtSignature"
            raise invalid(f"Invalid '{place}': send it back exactly as it came.", place, "invalid_value") from None
        if isinstance(found, Opaque):
            if found.minted_by == "google":
                return (found,)
            parts.append(Reasoning(opaque=(found,)))
        elif found:
            parts.append(Reasoning(found))
        return ()

    def _call(self, call: FunctionCall, role: str, path: str, opaque: tuple[Opaque, ...]) -> ToolCall:
        if role != "assistant":
            raise _misplaced("functionCall", "model", path)
        call_id = call.id or f"call_{self._calls}"
        self._calls += 1
        self._waiting.add(call_id, call.name)
        return ToolCall(call_id=call_id, name=call.name, arguments=_arguments(call, path), opaque=opaque)

    def _response(self, given: FunctionResponse, role: str, path: str) -> ToolResult:
        if role != "user":
            raise _misplaced("functionResponse", "user", path)
        for name in _OF_RESPONSES:
            raw = getattr(given, name)
            if raw is not UNSET:
                kind = f"functionResponse.{camel(name)}"
                judge(f"{path}.{camel(name)}", raw, RESPONSE_RULES[name], self._losses, self._limits, kind=kind)
        answered = self._waiting.take(given.id, given.name)
        if answered is None:
            raise invalid(
                f"'{path}' is of the function {given.name[:_SHOWN_CHARS]!r}, which has not been called before it.",
                path,
                "invalid_value",
            )
        parts, is_error = self._result(given, path)
        return ToolResult(call_id=answered[0], parts=parts, name=given.name, is_error=is_error)

    def _result(self, given: FunctionResponse, path: str) -> tuple[tuple[Text | Media | Json, ...], bool]:
        """What the function gave, and whether that is an error: `output` and `error` are names with a meaning."""
        value = {} if given.response is UNSET else free_object(given.response, f"{path}.response", self._limits)
        parts: list[Text | Media | Json] = []
        is_error = value.get("error") is not None
        if value.keys() == {"output"}:
            parts.append(_value(value["output"]))
        elif is_error and value.keys() <= {"error", "output"}:
            parts += [_value(value[name]) for name in ("output", "error") if value.get(name) is not None]
        elif value or not given.parts:
            parts.append(Json(value))
        self._count(len(given.parts or ()), f"{path}.parts")
        for index, part in enumerate(given.parts or ()):
            place = f"{path}.parts[{index}]"
            if part.inline_data is not None:
                parts.append(_inline(part.inline_data, place))
            elif part.file_data is not None:
                parts.append(_file(part.file_data, place))
            else:
                raise invalid(f"'{place}' holds no data.", place)
        return tuple(parts), is_error


def _turn(role: _Role, parts: list[Part]) -> Turn:
    """A turn of the model came in pieces: texts that follow each other are one, and so are thoughts."""
    if role == "assistant" and len(parts) > 1:
        joined: list[Part] = []
        for part in parts:
            before = joined[-1] if joined else None
            if type(part) is Text and type(before) is Text:
                joined[-1] = Text(before.text + part.text, before.opaque + part.opaque)
            elif type(part) is Reasoning and type(before) is Reasoning and part.text and before.text:
                joined[-1] = Reasoning(before.text + part.text, opaque=before.opaque + part.opaque)
            else:
                joined.append(part)
        parts = joined
    return Turn(role, tuple(parts) or (Text(""),))


def _arguments(call: FunctionCall, path: str) -> str:
    """The text of the object as it stands."""
    for name in ("partial_args", "will_continue"):
        raw = getattr(call, name)
        if raw is not UNSET and bytes(raw) not in (b"null", b"[]", b"false"):
            raise invalid(f"'{path}.{name}' is not supported: send the call whole.", f"{path}.{name}")
    raw = b"{}" if call.args is UNSET else bytes(call.args)
    if raw == b"null":
        raw = b"{}"
    return text_of(raw, f"{path}.args")


def _value(value: object) -> Text | Json:
    return Text(value) if isinstance(value, str) else Json(value)


def _inline(blob: Blob, path: str) -> Text | Media:
    """What is text becomes text."""
    mime = blob.mime_type
    if not mime:
        raise _missing(f"{path}.mimeType")
    if mime.startswith("text/") or mime == "application/json":
        try:
            return Text(base64.b64decode(blob.data.translate(_STANDARD), validate=True).decode())
        except (binascii.Error, ValueError):
            raise invalid(f"'{path}.data' is not text in base64.", f"{path}.data", "invalid_value") from None
    return Media(modality=_modality(mime), data=blob.data, mime=mime, filename=blob.display_name, path=path)


def _file(file: FileData, path: str) -> Media:
    if not file.file_uri:
        raise _missing(f"{path}.fileUri")
    mime = file.mime_type or None
    return Media(modality=_modality(mime or ""), url=file.file_uri, mime=mime, filename=file.display_name, path=path)


_STANDARD = str.maketrans("-_", "+/")


def _modality(mime: str) -> Literal["image", "audio", "video", "document"]:
    kind = mime.partition("/")[0].lower()
    match kind:
        case "image" | "audio" | "video":
            return kind
        case _:
            return "document"


def _misplaced(kind: str, role: str, path: str) -> RequestError:
    return invalid(f"'{kind}' is allowed in contents of the role '{role}' only.", path)


def _missing(path: str) -> RequestError:
    return invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
