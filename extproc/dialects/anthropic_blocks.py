"""Content blocks of Messages to parts, in their order."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.anthropic_fields import BLOCK_RULES, REDACTED_LOSS
from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.json_body import BodyLimits, decode, invalid
from extproc.dialects.opaque_blobs import BadBlobError, read_blob
from extproc.dialects.tool_arguments import text_of
from extproc.ir import Media, Opaque, Part, Reasoning, RequestError, Text, ToolCall, ToolResult

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Optional: TypeAlias = Annotated[str | None, "a string"]


class TextBlock(Struct, tag="text", tag_field="type", forbid_unknown_fields=True, gc=False):
    """`text`"""

    text: Annotated[str, "a string"]
    cache_control: _Anything = UNSET
    citations: _Anything = UNSET


class ThinkingBlock(Struct, tag="thinking", tag_field="type", forbid_unknown_fields=True, gc=False):
    """`thinking`"""

    thinking: Annotated[str, "a string"]
    signature: Annotated[str, "a string"] = ""  # other gateways leave it out


class RedactedBlock(Struct, tag="redacted_thinking", tag_field="type", forbid_unknown_fields=True, gc=False):
    """`redacted_thinking`"""

    data: Annotated[str, "a string"]


class ToolUseBlock(Struct, tag="tool_use", tag_field="type", forbid_unknown_fields=True, gc=False):
    """`tool_use`"""

    id: Annotated[str, "a string"]
    name: Annotated[str, "a string"]
    input: Annotated[Raw, "an object"]
    cache_control: _Anything = UNSET
    caller: _Anything = UNSET
    toolset_name: _Anything = UNSET


class Source(Struct, forbid_unknown_fields=True):
    """Where the content of an image or a document is."""

    type: Annotated[str, "one of 'base64', 'url', 'file', 'text' and 'content'"]
    media_type: _Optional = None
    data: _Optional = None
    url: _Optional = None
    file_id: _Optional = None
    content: _Anything = UNSET


class ImageBlock(Struct, tag="image", tag_field="type", forbid_unknown_fields=True):
    """`image`"""

    source: Annotated[Source, "an object"]
    cache_control: _Anything = UNSET
    transformations: _Anything = UNSET


class DocumentBlock(Struct, tag="document", tag_field="type", forbid_unknown_fields=True):
    """`document`"""

    source: Annotated[Source, "an object"]
    title: _Optional = None
    context: _Optional = None
    cache_control: _Anything = UNSET
    citations: _Anything = UNSET


class SearchResultBlock(Struct, tag="search_result", tag_field="type", forbid_unknown_fields=True):
    """`search_result`"""

    source: Annotated[str, "a string"]
    title: Annotated[str, "a string"]
    content: Annotated[list[TextBlock], "an array of text blocks"]
    cache_control: _Anything = UNSET
    citations: _Anything = UNSET


_Shown: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(Struct, tag="tool_result", tag_field="type", forbid_unknown_fields=True):
    """`tool_result`"""

    tool_use_id: Annotated[str, "a string"]
    content: Annotated[str | list[_Shown] | None, "a string or an array of blocks"] = None
    is_error: Annotated[bool | None, "a boolean"] = None
    cache_control: _Anything = UNSET
    toolset_name: _Anything = UNSET


Block: TypeAlias = (
    TextBlock
    | ThinkingBlock
    | RedactedBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)

BLOCK_TYPES = (
    "one of 'text', 'image', 'document', 'search_result', 'tool_use', 'tool_result', 'thinking' and 'redacted_thinking'"
)

_SHOWN = msgspec.json.Decoder(str | list[_Shown])
_FIELDS = tuple(BLOCK_RULES)


class BlockReader:
    """Reads the blocks of one request: knows which tools were called, counts what it has read, notes what is lost."""

    def __init__(self, losses: Losses, limits: BodyLimits) -> None:
        self._losses = losses
        self._limits = limits
        self._left = limits.max_messages
        self._calls: set[str] = set()

    def parts(self, blocks: list[Block], role: str, path: str) -> list[Part]:
        """Raises RequestError with the path of what cannot be carried."""
        self._count(len(blocks), path)
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            if type(block) is TextBlock and block.cache_control is UNSET and block.citations is UNSET:
                if block.text:
                    parts.append(Text(block.text))
            else:
                self._add(block, role, f"{path}[{index}]", parts)
        return parts

    def _count(self, blocks: int, path: str) -> None:
        self._left -= blocks
        if self._left < 0:
            most = self._limits.max_messages
            raise invalid(
                f"Too many content blocks: at most {most} are allowed in a conversation.",
                path,
                "array_above_max_length",
            )

    def _add(self, block: Block, role: str, path: str, parts: list[Part]) -> None:
        self._judge(block, path)
        match block:
            case TextBlock():
                if block.text:
                    parts.append(Text(block.text))
            case ThinkingBlock() | RedactedBlock():
                parts.append(self._reasoning(block, role, path))
            case ToolUseBlock():
                if role != "assistant":
                    raise _misplaced("tool_use", "assistant", path)
                self._calls.add(block.id)
                parts.append(
                    ToolCall(call_id=block.id, name=block.name, arguments=text_of(bytes(block.input), f"{path}.input"))
                )
            case ToolResultBlock():
                parts.append(self._result(block, role, path))
            case ImageBlock() | DocumentBlock() | SearchResultBlock():
                if role == "assistant":
                    raise _misplaced(_type_of(block), "user", path)
                parts += self._show(block, path)

    def _reasoning(self, block: ThinkingBlock | RedactedBlock, role: str, path: str) -> Reasoning:
        if role != "assistant":
            raise _misplaced(_type_of(block), "assistant", path)
        if isinstance(block, ThinkingBlock):
            text, field, data = block.thinking, "signature", block.signature
        else:
            text, field, data = "", "data", block.data
            self._losses["messages[*].content[*].redacted_thinking"] = REDACTED_LOSS
        try:
            found = read_blob(data, "anthropic", "redacted" if field == "data" else "signature")
        except BadBlobError:
            raise invalid(
                f"Invalid `{field}` in a thinking block: send it back exactly as it came.", f"{path}.{field}"
            ) from None
        if isinstance(found, Opaque):
            return Reasoning(text, opaque=(found,))
        return Reasoning(text if found is None else found)

    def _result(self, block: ToolResultBlock, role: str, path: str) -> ToolResult:
        if role != "user":
            raise _misplaced("tool_result", "user", path)
        if block.tool_use_id not in self._calls:
            raise invalid(
                f"'{path}.tool_use_id' names {block.tool_use_id[:64]!r}, which is no `tool_use` block before it.",
                f"{path}.tool_use_id",
                "invalid_value",
            )
        content = block.content
        parts: list[Text | Media] = []
        if isinstance(content, str):
            parts = [Text(content)]
        elif content:
            parts = self._shown(content, f"{path}.content")
        return ToolResult(call_id=block.tool_use_id, parts=tuple(parts), is_error=bool(block.is_error))

    def _shown(self, blocks: list[_Shown], path: str) -> list[Text | Media]:
        self._count(len(blocks), path)
        parts: list[Text | Media] = []
        for index, block in enumerate(blocks):
            place = f"{path}[{index}]"
            self._judge(block, place)
            if isinstance(block, TextBlock):
                parts.append(Text(block.text))
            else:
                parts += self._show(block, place)
        return parts

    def _show(self, block: ImageBlock | DocumentBlock | SearchResultBlock, path: str) -> list[Text | Media]:
        """What is text becomes text, with its title."""
        if isinstance(block, SearchResultBlock):
            self._count(len(block.content), path)
            return [Text("\n".join([block.title, block.source, "", *[text.text for text in block.content]]))]
        source = block.source
        if isinstance(block, ImageBlock):
            return [_media("image", source, None, path)]
        heading = [line for line in (block.title, block.context) if line]
        if source.type == "text":
            if source.data is None:
                raise _missing(f"{path}.source.data")
            return [Text("\n".join([*heading, "", source.data] if heading else [source.data]))]
        if source.type == "content":
            said: list[Text | Media] = [Text("\n".join(heading))] if heading else []
            return said + self._contained(source, f"{path}.source.content")
        return [_media("document", source, block.title, path)]

    def _contained(self, source: Source, path: str) -> list[Text | Media]:
        if source.content is UNSET:
            raise _missing(path)
        content = decode(_SHOWN, source.content, {path: "a string or an array of blocks"}, root=path)
        if isinstance(content, str):
            return [Text(content)]
        for index, block in enumerate(content):
            if isinstance(block, DocumentBlock | SearchResultBlock):
                raise invalid(
                    f"'{path}[{index}]' must be a text or an image.", f"{path}[{index}].type", "invalid_value"
                )
        return self._shown(content, path)

    def _judge(self, block: Block, path: str) -> None:
        """What a block says beside its content."""
        for name in _FIELDS:
            raw = getattr(block, name, UNSET)
            if isinstance(raw, Raw):
                kind = f"messages[*].content[*].{name}"
                judge(f"{path}.{name}", raw, BLOCK_RULES[name], self._losses, self._limits, kind=kind)


def system_parts(blocks: list[TextBlock], losses: Losses, limits: BodyLimits) -> list[str]:
    """The texts of a system prompt."""
    texts: list[str] = []
    for index, block in enumerate(blocks):
        for name in ("cache_control", "citations"):
            raw = getattr(block, name)
            if raw is not UNSET:
                judge(f"system[{index}].{name}", raw, BLOCK_RULES[name], losses, limits, kind=f"system[*].{name}")
        texts.append(block.text)
    return texts


def _media(modality: Literal["image", "document"], source: Source, title: str | None, path: str) -> Media:
    match source.type:
        case "base64":
            needed, value = "data", source.data
        case "url":
            needed, value = "url", source.url
        case "file":
            needed, value = "file_id", source.file_id
        case _:
            place = f"{path}.source.type"
            raise invalid(f"Invalid value for '{place}': expected {_SOURCES[modality]}.", place, "invalid_value")
    if value is None:
        raise _missing(f"{path}.source.{needed}")
    if source.type == "base64" and source.media_type is None:
        raise _missing(f"{path}.source.media_type")
    return Media(
        modality=modality,
        data=source.data if needed == "data" else None,
        url=source.url if needed == "url" else None,
        file_id=source.file_id if needed == "file_id" else None,
        mime=source.media_type,
        filename=title,
        path=path,
    )


_SOURCES = {
    "image": "one of 'base64', 'url' and 'file'",
    "document": "one of 'base64', 'text', 'content', 'url' and 'file'",
}


def _type_of(block: Block) -> str:
    return str(block.__struct_config__.tag)


def _misplaced(kind: str, role: str, path: str) -> RequestError:
    return invalid(f"Blocks of the type '{kind}' are allowed in messages of the role '{role}' only.", path)


def _missing(path: str) -> RequestError:
    return invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
