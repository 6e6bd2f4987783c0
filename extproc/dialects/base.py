"""What every client dialect offers: parse a request, render events and errors. Pure functions of bytes and values."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from extproc.ir import ChatRequest, ErrorInfo, Event, Usage


class Rendered(Struct, frozen=True):
    """A rendered HTTP message."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class AnswerIdentity(Struct, frozen=True):
    """What every chunk of an answer repeats."""

    id: str  # such as chatcmpl-…
    created_s: int
    model: str  # as the client wrote it


class StreamRenderer(Protocol):
    """Events of one answer to the bytes of a stream. The bytes may be b"" when nothing is to be said yet."""

    content_type: str

    def start(self) -> bytes:
        """The openers of all choices; called once, first."""
        ...

    def events(self, events: list[Event]) -> bytes: ...

    def end(self, usage: Usage) -> bytes:
        """After every choice has finished; if one has not, the stream breaks off with an error."""
        ...

    def error(self, error: ErrorInfo) -> bytes:
        """Break the stream off; nothing follows."""
        ...


class WholeRenderer(Protocol):
    """Events of one answer to one JSON body."""

    content_type: str

    def events(self, events: list[Event]) -> None: ...

    def end(self, usage: Usage) -> bytes:
        """Raises RequestError where a choice was aborted or never finished."""
        ...


class ChatDialect(Protocol):
    """A client API that continues conversations."""

    def parse(self, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        ...

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> StreamRenderer: ...

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> WholeRenderer: ...

    def error(self, error: ErrorInfo) -> Rendered: ...
