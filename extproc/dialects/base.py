"""What every client dialect offers: parse a request, render events and errors. Pure functions of bytes and values.

A `Dialect` is a value: its rows say which requests are its own, its codecs what it does with them. One that is listed
in `registry.py` is served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from extproc.ir import (
    ChatRequest,
    Embedding,
    EmbedRequest,
    ErrorInfo,
    Event,
    ModelCard,
    Operation,
    TextRequest,
    Usage,
)


class Inbound(Struct, frozen=True):
    """What is known of a request before its body."""

    method: str
    path: str  # without the query
    query: str
    headers: Mapping[str, str]  # names in lower case
    argument: str = ""  # what the path holds, such as a model's name, as it came: percent-encoded or not


class Row(Struct, frozen=True):
    """Requests of one form.

    `path` is compared byte for byte. A segment `*` stands for any one segment, and a path that ends in a slash is
    followed by the argument, slashes included, and then by `ending`. Of rows with the same method and path the first
    counts whose `when` is true of the request.
    """

    method: str
    path: str
    operation: Operation
    ending: str = ""
    when: Callable[[Inbound], bool] | None = None


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
    prompt_tokens: int = 0  # for dialects that tell them at the beginning


class StreamRenderer(Protocol):
    """Events of one answer to the bytes of a stream. The bytes may be b"" when nothing is to be said yet."""

    content_type: str
    keep_alive: bytes  # between any two of its pieces: changes nothing, but tells that the answer goes on; may be empty

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


class ChatCodec(Protocol):
    """A client API that continues conversations."""

    id_prefix: str  # of answers
    call_id_prefix: str  # of the tool calls in them

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        ...

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> StreamRenderer: ...

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> WholeRenderer: ...


class TextCodec(Protocol):
    """A client API that continues texts. Choices are counted through, prompt after prompt."""

    id_prefix: str  # of answers

    def parse(self, inbound: Inbound, body: bytes) -> TextRequest:
        """Raises RequestError."""
        ...

    def stream(self, request: TextRequest, identity: AnswerIdentity, echoes: Sequence[str]) -> StreamRenderer:
        """`echoes`: the prompts' texts where they are to stand before the answers, else empty."""
        ...

    def whole(self, request: TextRequest, identity: AnswerIdentity, echoes: Sequence[str]) -> WholeRenderer: ...


class EmbedCodec(Protocol):
    """A client API that embeds texts."""

    def parse(self, inbound: Inbound, body: bytes) -> EmbedRequest:
        """Raises RequestError."""
        ...

    def render(self, request: EmbedRequest, embeddings: Sequence[Embedding]) -> Rendered:
        """`embeddings`: of the request's inputs, in their order."""
        ...


class CountCodec(Protocol):
    """A client API that counts the tokens of a conversation's prompt."""

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        ...

    def render(self, request: ChatRequest, prompt_tokens: int) -> Rendered: ...


class ModelsCodec(Protocol):
    """A client API that lists models."""

    def list(self, inbound: Inbound, cards: Sequence[ModelCard]) -> Rendered:
        """Raises RequestError."""
        ...

    def name(self, inbound: Inbound, body: bytes) -> str:
        """Which model is asked for; `body` is empty but for POST. Raises RequestError."""
        ...

    def get(self, inbound: Inbound, card: ModelCard) -> Rendered: ...


class Dialect(Struct, frozen=True, kw_only=True):
    """One client API. An operation of its rows needs the codec for it."""

    name: str
    rows: tuple[Row, ...]
    error: Callable[[ErrorInfo, Inbound], Rendered]
    claims: Callable[[Inbound], bool] = lambda inbound: False  # unknown URLs whose clients read this dialect's errors
    request_id_header: str = "x-request-id"  # in answers
    chat: ChatCodec | None = None
    text: TextCodec | None = None
    embed: EmbedCodec | None = None
    count: CountCodec | None = None
    models: ModelsCodec | None = None
