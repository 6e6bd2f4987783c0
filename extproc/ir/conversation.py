"""Turns and their parts."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Opaque(Struct, frozen=True):
    """A blob that only its minter reads: a signature, or encrypted reasoning."""

    minted_by: str  # whose it is, such as `anthropic`, `google`, `openai`
    kind: Literal["signature", "redacted", "encrypted"]
    data: str  # exactly as on the wire
    item_id: str | None = None  # of the item that it came with, where the minter has ids for them


class Text(Struct, frozen=True):
    """Plain text of a turn."""

    text: str
    opaque: tuple[Opaque, ...] = ()


class Reasoning(Struct, frozen=True):
    """What the model thought before what follows. Without a text it is known only to the minter of its blobs."""

    text: str = ""
    summary: tuple[str, ...] = ()  # where a server tells it beside or instead of the text
    opaque: tuple[Opaque, ...] = ()


class Refusal(Struct, frozen=True):
    """The model's own words for not answering."""

    text: str


class Media(Struct, frozen=True, kw_only=True):
    """An image, sound, video or document: exactly one of `data`, `url` and `file_id`."""

    modality: Literal["image", "audio", "video", "document"]
    data: str | None = None  # base64
    url: str | None = None
    file_id: str | None = None
    mime: str | None = None
    filename: str | None = None
    detail: str | None = None
    path: str = ""  # where it stood in the client's body, for errors


class Json(Struct, frozen=True):
    """Structured content of a tool's result."""

    value: Any


class ToolCall(Struct, frozen=True, kw_only=True):
    """The model's wish to have a tool called."""

    call_id: str  # its result names it
    name: str
    arguments: str  # R5; of a custom tool its input, which is any text
    custom: bool = False
    opaque: tuple[Opaque, ...] = ()


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a tool answered."""

    call_id: str
    parts: tuple[Text | Media | Json, ...]
    name: str | None = None  # the tool's, where the client repeats it
    is_error: bool = False


class Hosted(Struct, frozen=True):
    """An item of a tool that the answering server runs itself, carried for servers of the same dialect."""

    dialect: str
    type: str
    payload: Any


Part = Text | Reasoning | Refusal | Media | Json | ToolCall | ToolResult | Hosted


class Turn(Struct, frozen=True):
    """One message of the conversation, in the client's order."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """All text of the turn, in order, without separator."""
        return "".join([part.text for part in self.parts if type(part) is Text])
