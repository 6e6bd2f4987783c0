"""Items of a Responses request to turns, in their order."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.json_body import BodyLimits, invalid, unsupported
from extproc.dialects.opaque_blobs import BadBlobError, read_blob
from extproc.dialects.openai_responses_fields import ENCRYPTED_LOSS, ITEM_RULES, PART_RULES
from extproc.ir import Media, Opaque, Part, Reasoning, Refusal, RequestError, Text, ToolCall, ToolResult, Turn

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Optional: TypeAlias = Annotated[str | None, "a string"]
_Role: TypeAlias = Literal["user", "assistant", "system", "developer"]


class _Audio(Struct, forbid_unknown_fields=True):
    data: Annotated[str, "a string"]
    format: Annotated[str, "a string"]


class InputPart(Struct, forbid_unknown_fields=True, gc=False):
    """One part of an item's content, or of a tool's output."""

    type: Annotated[str, "a part's type"]
    text: _Optional = None
    refusal: _Optional = None
    image_url: _Optional = None
    file_id: _Optional = None
    file_data: _Optional = None
    file_url: _Optional = None
    filename: _Optional = None
    detail: _Optional = None
    input_audio: Annotated[_Audio | None, "an object with data and format"] = None
    prompt_cache_breakpoint: _Anything = UNSET
    annotations: _Anything = UNSET
    logprobs: _Anything = UNSET
    parsed: _Anything = UNSET  # what the SDK's helpers made of the text; it adds nothing


class InputItem(Struct, forbid_unknown_fields=True, gc=False):
    """One item, of any of the types that are carried."""

    type: _Optional = None
    role: _Optional = None
    content: Annotated[str | list[InputPart] | None, "a string or an array of parts"] = None
    id: _Optional = None
    status: _Optional = None
    call_id: _Optional = None
    name: _Optional = None
    arguments: _Optional = None
    input: _Optional = None
    output: Annotated[str | list[InputPart] | None, "a string or an array of parts"] = None
    summary: Annotated[list[InputPart] | None, "an array of parts"] = None
    encrypted_content: _Optional = None
    phase: _Anything = UNSET
    namespace: _Anything = UNSET
    caller: _Anything = UNSET
    async_: _Anything = msgspec.field(default=UNSET, name="async")
    parsed_arguments: _Anything = UNSET  # the SDK's, made of the arguments


_ROLES: dict[str, _Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "developer"}
_FIELDS_OF_ITEMS = tuple((name, "async_" if name == "async" else name) for name in ITEM_RULES)
_FIELDS_OF_PARTS = tuple(PART_RULES)
_TEXTS = frozenset(("input_text", "output_text", "text"))


class ItemReader:
    """Reads the items of one request: knows which tools were called, counts what it has read, notes what is lost."""

    def __init__(self, losses: Losses, limits: BodyLimits) -> None:
        self._losses = losses
        self._limits = limits
        self._left = limits.max_messages
        self._called: dict[str, str] = {}
        self._turns: list[Turn] = []
        self._said: list[Part] = []  # of the assistant's turn that is being read

    def turns(self, items: list[InputItem]) -> list[Turn]:
        """Items of the assistant in a row are one turn. Raises RequestError with the path of what cannot be carried."""
        self._count(len(items), "input")
        for index, item in enumerate(items):
            content = item.content
            if type(content) is str and (item.type is None or item.type == "message") and item.phase is UNSET:
                # Hot: most items of long conversations.
                role = _ROLES.get(item.role or "")
                if role is None:
                    raise _wrong_role(f"input[{index}]")
                self._add(role, [Text(content)])
            else:
                self._item(item, f"input[{index}]")
        self._end_turn()
        return self._turns

    def _add(self, role: _Role, parts: list[Part]) -> None:
        if role == "assistant":
            self._said += parts
        else:
            self._end_turn()
            self._turns.append(Turn(role, tuple(parts)))

    def _end_turn(self) -> None:
        if self._said:
            self._turns.append(Turn("assistant", tuple(self._said)))
            self._said = []

    def _item(self, item: InputItem, path: str) -> None:
        if (
            item.phase is not UNSET
            or item.namespace is not UNSET
            or item.caller is not UNSET
            or item.async_ is not UNSET
        ):
            self._judge(item, path)
        match item.type:
            case None | "message":
                if item.type is None and item.role is None and item.id is not None:
                    raise _reference(item.id, path)
                self._message(item, path)
            case "reasoning":
                self._said.append(self._reasoning(item, path))
            case "function_call" | "custom_tool_call":
                self._said.append(self._call(item, path))
            case "function_call_output" | "custom_tool_call_output":
                self._end_turn()
                self._turns.append(Turn("tool", (self._result(item, path),)))
            case "item_reference":
                raise _reference(item.id or "", path)
            case kind:
                raise unsupported_item(kind, path)

    def _judge(self, item: InputItem, path: str) -> None:
        """What an item says beside its content."""
        for name, attribute in _FIELDS_OF_ITEMS:
            raw = getattr(item, attribute)
            if raw is not UNSET:
                judge(f"{path}.{name}", raw, ITEM_RULES[name], self._losses, self._limits, kind=f"input[*].{name}")

    def _message(self, item: InputItem, path: str) -> None:
        role = _ROLES.get(item.role or "")
        if role is None:
            raise _wrong_role(path)
        content = item.content
        if content is None:
            raise _missing(f"{path}.content")
        if isinstance(content, str):
            self._add(role, [Text(content)])
            return
        if not content and role != "assistant":
            raise invalid(
                f"Invalid value for '{path}.content': expected a string or a non-empty array of parts.",
                f"{path}.content",
                "empty_array",
            )
        parts = self._parts(content, f"{path}.content", refusals=role == "assistant", media=role == "user")
        self._add(role, parts or [Text("")])

    def _reasoning(self, item: InputItem, path: str) -> Reasoning:
        content = item.content
        said = (
            [content] if isinstance(content, str) else self._plain(content or [], "reasoning_text", f"{path}.content")
        )
        summary = tuple(self._plain(item.summary or [], "summary_text", f"{path}.summary"))
        text = "\n".join(said)
        try:
            blob = read_blob(item.encrypted_content or "", "openai", "encrypted", item.id)
        except BadBlobError:
            raise invalid(
                f"Invalid '{path}.encrypted_content': send it back exactly as it came.",
                f"{path}.encrypted_content",
                "invalid_encrypted_content",
            ) from None
        if isinstance(blob, Opaque):
            self._losses["input[*].encrypted_content"] = ENCRYPTED_LOSS
            return Reasoning(text, summary, (blob,))
        return Reasoning(text or blob or "", summary)

    def _plain(self, parts: list[InputPart], kind: str, path: str) -> list[str]:
        """The texts of parts that may be of one type only."""
        self._count(len(parts), path)
        texts = []
        for index, part in enumerate(parts):
            if part.type not in (kind, "text"):
                place = f"{path}[{index}].type"
                raise invalid(f"Invalid value for '{place}': expected '{kind}'.", place, "invalid_value")
            texts.append(_needed(part.text, f"{path}[{index}].text"))
        return texts

    def _call(self, item: InputItem, path: str) -> ToolCall:
        custom = item.type == "custom_tool_call"
        call_id = _needed(item.call_id, f"{path}.call_id")
        name = _needed(item.name, f"{path}.name")
        self._called[call_id] = name
        arguments = _needed(item.input, f"{path}.input") if custom else _needed(item.arguments, f"{path}.arguments")
        return ToolCall(call_id=call_id, name=name, arguments=arguments, custom=custom)

    def _result(self, item: InputItem, path: str) -> ToolResult:
        call_id = _needed(item.call_id, f"{path}.call_id")
        if call_id not in self._called:
            raise invalid(
                f"No tool call found for the output with the call_id {call_id[:64]!r}.",
                f"{path}.call_id",
                "invalid_value",
            )
        output = item.output
        if output is None:
            raise _missing(f"{path}.output")
        if isinstance(output, str):
            parts: list[Part] = [Text(output)]
        else:
            parts = self._parts(output, f"{path}.output", refusals=False, media=True)
        said = tuple([part for part in parts if isinstance(part, Text | Media)])
        return ToolResult(call_id=call_id, parts=said, name=self._called[call_id])

    def _parts(self, parts: list[InputPart], path: str, *, refusals: bool, media: bool) -> list[Part]:
        self._count(len(parts), path)
        return [
            self._part(part, f"{path}[{index}]", refusals=refusals, media=media) for index, part in enumerate(parts)
        ]

    def _part(self, part: InputPart, path: str, *, refusals: bool, media: bool) -> Part:
        for name in _FIELDS_OF_PARTS:
            raw = getattr(part, name)
            if raw is not UNSET:
                kind = f"input[*].content[*].{name}"
                judge(f"{path}.{name}", raw, PART_RULES[name], self._losses, self._limits, kind=kind)
        if part.type in _TEXTS:
            return Text(_needed(part.text, f"{path}.text"))
        if refusals and part.type == "refusal":
            return Refusal(_needed(part.refusal, f"{path}.refusal"))
        if media:
            match part.type:
                case "input_image":
                    if part.image_url is None and part.file_id is None:
                        raise _missing(f"{path}.image_url")
                    return _media("image", part.image_url, part, path)
                case "input_file":
                    if part.file_data is None and part.file_url is None and part.file_id is None:
                        raise _missing(f"{path}.file_data")
                    return _media("document", part.file_data or part.file_url, part, path)
                case "input_audio":
                    audio = part.input_audio
                    if audio is None:
                        raise _missing(f"{path}.input_audio")
                    return Media(modality="audio", data=audio.data, mime=f"audio/{audio.format}", path=f"{path}.type")
        expected = "'input_text'" + (", 'input_image', 'input_file' or 'input_audio'" if media else "")
        if refusals:
            expected = "'output_text' or 'refusal'"
        raise invalid(f"Invalid value for '{path}.type': expected {expected}.", f"{path}.type", "invalid_value")

    def _count(self, count: int, path: str) -> None:
        self._left -= count
        if self._left < 0:
            raise invalid(
                f"Too many items and parts: at most {self._limits.max_messages} are allowed.",
                path,
                "array_above_max_length",
            )


def unsupported_item(kind: str, path: str) -> RequestError:
    """The error for an item of a type that is not carried."""
    return unsupported(
        f"Items of the type '{kind[:64]}' are not supported: this server runs no tools itself.",
        f"{path}.type",
        "unsupported_value",
    )


def _media(modality: Literal["image", "document"], where: str | None, part: InputPart, path: str) -> Media:
    """`where`: a URL, which may hold the data, or base64."""
    known: dict[str, Any] = {
        "modality": modality,
        "filename": part.filename,
        "detail": part.detail,
        "path": f"{path}.type",
    }
    if where is None:
        return Media(file_id=part.file_id, **known)
    head, comma, data = where.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return Media(data=data, mime=head[5:-7] or None, **known)
    if where is part.file_data:
        return Media(data=where, **known)
    return Media(url=where, **known)


def _needed(value: str | None, path: str) -> str:
    if value is None:
        raise _missing(path)
    return value


def _missing(path: str) -> RequestError:
    return invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def _wrong_role(path: str) -> RequestError:
    return invalid(
        f"Invalid value for '{path}.role': expected one of 'user', 'assistant', 'system' and 'developer'.",
        f"{path}.role",
        "invalid_value",
    )


def _reference(item_id: str, path: str) -> RequestError:
    return invalid(
        f"Item with id {item_id[:64]!r} not found: items are not stored. Send the item itself.",
        f"{path}.id",
        "item_not_found",
    )
