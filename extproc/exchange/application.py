"""What an exchange asks of the application: the only things that pass between ext_proc and the LLM side.

The application sees plain HTTP: a request's head and body, an answer's head, body pieces and trailers. It never sees
ext_proc messages, and the exchange never sees what the bytes mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol

from msgspec import Struct


class RequestHead(Struct, frozen=True):
    """Method, path and headers of a client's request."""

    method: str
    path: str  # with the query
    headers: Mapping[str, str]  # names in lower case, the first value of a repeated header
    attributes: Mapping[str, object] = {}  # Envoy's request attributes, where the configuration asks for them


class Reply(Struct, frozen=True):
    """A whole HTTP answer that the processor gives itself."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    details: str = ""  # for Envoy's access log; no spaces


class AnswerHead(Struct, frozen=True):
    """Status and headers of what comes back from upstream, or from Envoy itself."""

    status: int
    headers: Mapping[str, str]
    local: bool  # Envoy's own reply (no connection, time-out, rate limit …), not the engine's
    details: str  # Envoy's response code details
    served_by: str | None  # address of the host that really served, also after a retry
    end_of_stream: bool  # nothing follows, no body and no trailers


class Begin(Struct, frozen=True):
    """Start the client's answer now: status and headers to set, names to remove, and a first piece of body.

    The upstream's other headers pass.
    """

    status: int
    set_headers: tuple[tuple[str, str], ...]
    remove_headers: tuple[str, ...]
    body: bytes = b""
    end: bool = False  # the body is complete, the upstream is not waited for


class Piece(Struct, frozen=True):
    """More of an answer that has begun."""

    body: bytes
    end: bool = False  # the body is complete, the upstream is not waited for


class Answer(Protocol):
    """Turns one upstream answer into the client's. Methods return what is to be sent now; None sends nothing.

    `Begin` comes at most once and before any `Piece`. `end` is called exactly once for every answer whose upstream
    ended in order; `close` exactly once for every answer, whatever happened, and is the last call.
    """

    def head(self, head: AnswerHead) -> Begin | None:
        """The upstream's headers."""
        ...

    def body(self, data: bytes) -> Begin | Piece | None:
        """A piece of the upstream's body, cut anywhere."""
        ...

    def end(self, trailers: Mapping[str, str]) -> Begin | Piece | None:
        """The upstream's end. What this returns is the client's last piece."""
        ...

    def keep_alive(self) -> Piece | None:
        """Asked now and then: what tells the client that the answer goes on, where it has long heard nothing."""
        ...

    def expire(self) -> Begin | Piece:
        """The exchange's deadline has passed: the answer's last piece, in place of the upstream's."""
        ...

    def fail(self) -> Begin | Piece:
        """An internal error, which the exchange has logged: the answer's last piece."""
        ...

    def close(self) -> None:
        """The exchange is over: release everything."""
        ...


class Forward(Struct, frozen=True):
    """Send the request to a pool's worker, transcoded."""

    set_headers: tuple[tuple[str, str], ...]
    remove_headers: tuple[str, ...]
    body: bytes
    metadata: Mapping[str, Mapping[str, str]]  # dynamic metadata: namespace, key, value
    answer: Answer


class ReadBody(Struct, frozen=True):
    """The request's body is wanted, up to a limit."""

    limit_bytes: int


Outcome = Reply | Forward


class Request(Protocol):
    """The application's side of one request, from its head until it is answered or forwarded."""

    def head(self, head: RequestHead) -> ReadBody | Outcome:
        """The request's head. Called first, once."""
        ...

    def body(self, data: bytes) -> Outcome | Awaitable[Outcome]:
        """The whole body, once, when `head` asked for it. An awaitable where something really waits."""
        ...

    def too_large(self) -> Reply:
        """The body is over the limit."""
        ...

    def no_room(self) -> Reply:
        """The bodies of all requests together are over what may be held."""
        ...

    def expire(self) -> Reply:
        """The deadline passed before the request was forwarded or answered."""
        ...

    def fail(self) -> Reply:
        """An internal error, which the exchange has logged."""
        ...

    def close(self) -> None:
        """The exchange ended before `Forward` handed over to an answer: release everything. May come at any time."""
        ...


class Application(Protocol):
    """Where requests come in."""

    def request(self) -> Request:
        """A new request."""
        ...
