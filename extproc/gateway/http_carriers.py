"""How the answer of an HTTP engine becomes the client's: echoed as it comes, or translated through events.

A carrier holds one answer. It takes the engine's bytes cut anywhere and returns what goes to the client.
"""

from __future__ import annotations

from typing import Protocol

from extproc.dialects.base import StreamRenderer, WholeRenderer
from extproc.dialects.openai_errors import error_body
from extproc.engines.base import ProtocolError
from extproc.engines.openai_answer import MOST_BODY_BYTES, OpenAIDecoder
from extproc.engines.openai_tap import NameChange, StreamTap, WholeTap
from extproc.ir import TRUNCATED, ErrorInfo, Event, RequestError, Usage

JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream"


class Carrier(Protocol):
    """One answer on its way through."""

    @property
    def content_type(self) -> str:
        """Of what the client gets."""
        ...

    @property
    def streams(self) -> bool:
        """The client gets it while it comes."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """Between any two events of a stream: tells the client that it goes on. Empty for what does not stream."""
        ...

    @property
    def error(self) -> ErrorInfo | None:
        """What the engine told to be wrong, after `feed` and `end`."""
        ...

    def head(self, content_type: str) -> bool:
        """How the engine's answer comes. False where that is no answer to what was asked."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Raises ProtocolError."""
        ...

    @property
    def begun(self) -> bool:
        """Something of the answer has come: its first token, or the news that there is none."""
        ...

    def end(self) -> bytes:
        """The rest. Raises RequestError for an answer that was broken off, and ProtocolError."""
        ...

    @property
    def usage(self) -> Usage:
        """After `end`."""
        ...

    def broken(self, error: ErrorInfo) -> bytes:
        """The last words of a stream that has begun."""
        ...


class EchoStream:
    """A stream of the client's own dialect."""

    content_type = EVENTS_TYPE
    streams = True
    keep_alive = b": keep-alive\n\n"

    def __init__(self, choices: int, *, hides_usage: bool, name: NameChange | None) -> None:
        self._tap = StreamTap(choices, hides_usage=hides_usage, name=name)

    @property
    def error(self) -> ErrorInfo | None:
        """What the engine told in an event, which has been passed on."""
        return self._tap.error

    @property
    def begun(self) -> bool:
        """An event has come."""
        return self._tap.begun

    @property
    def usage(self) -> Usage:
        """As the engine counts."""
        return self._tap.usage

    def head(self, content_type: str) -> bool:
        """Only events are a stream."""
        return content_type == EVENTS_TYPE

    def feed(self, data: bytes) -> bytes:
        """Raises ProtocolError."""
        return self._tap.feed(data)

    def end(self) -> bytes:
        """Raises RequestError."""
        rest = self._tap.end()
        if not self._tap.complete and self._tap.error is None:
            raise RequestError(TRUNCATED)
        return rest

    def broken(self, error: ErrorInfo) -> bytes:
        """Nothing where the engine has said so itself."""
        return b"" if error is self._tap.error else b"data: %b\n\n" % error_body(error)


class EchoWhole:
    """A JSON body of the client's own dialect, held until it is known to be whole."""

    content_type = JSON_TYPE
    streams = False
    keep_alive = b""

    def __init__(self, name: NameChange | None) -> None:
        self._tap = WholeTap(name)
        self._pieces: list[bytes] = []
        self._size = 0

    @property
    def error(self) -> ErrorInfo | None:
        """Told with the status 200."""
        return self._tap.error

    @property
    def begun(self) -> bool:
        """A piece has come."""
        return bool(self._pieces)

    @property
    def usage(self) -> Usage:
        """As the engine counts."""
        return self._tap.usage

    def head(self, content_type: str) -> bool:
        """Only JSON."""
        return content_type == JSON_TYPE

    def feed(self, data: bytes) -> bytes:
        """Raises ProtocolError."""
        self._size += len(data)
        if self._size > MOST_BODY_BYTES:
            raise ProtocolError(f"an answer of over {MOST_BODY_BYTES} bytes")
        self._pieces.append(data)
        return b""

    def end(self) -> bytes:
        """Raises RequestError and ProtocolError."""
        body, self._pieces = b"".join(self._pieces), []
        if not body:
            raise RequestError(TRUNCATED)
        body = self._tap.read(body)
        if self._tap.error is not None:
            raise RequestError(self._tap.error)
        return body

    def broken(self, error: ErrorInfo) -> bytes:
        """It ends with its beginning."""
        return b""


class _Translation:
    """What both ways of rendering share: the decoder."""

    def __init__(self, decoder: OpenAIDecoder) -> None:
        self._decoder = decoder
        self.begun = False

    @property
    def error(self) -> ErrorInfo | None:
        """What the engine told."""
        return self._decoder.error

    @property
    def usage(self) -> Usage:
        """As the engine counts."""
        return self._decoder.usage

    def head(self, content_type: str) -> bool:
        """Whole or in events, whatever was asked for."""
        if content_type == EVENTS_TYPE:
            self._decoder.streams()
        return content_type in (EVENTS_TYPE, JSON_TYPE)

    def _events(self, data: bytes) -> list[Event]:
        events = self._decoder.feed(data)
        self.begun = self.begun or bool(events)
        return events

    def _last(self) -> list[Event]:
        events, error = self._decoder.end()
        if error is not None:
            raise RequestError(error)
        return events


class TranslatedStream(_Translation):
    """Events as the client's dialect streams them."""

    streams = True

    def __init__(self, decoder: OpenAIDecoder, renderer: StreamRenderer) -> None:
        super().__init__(decoder)
        self._renderer = renderer
        self._started = False
        self.content_type = renderer.content_type
        self.keep_alive = renderer.keep_alive

    def feed(self, data: bytes) -> bytes:
        """Raises ProtocolError."""
        events = self._events(data)
        return self._start() + self._renderer.events(events) if events else b""

    def end(self) -> bytes:
        """Raises RequestError and ProtocolError."""
        events = self._last()
        start = self._start()
        return start + self._renderer.events(events) + self._renderer.end(self.usage)

    def broken(self, error: ErrorInfo) -> bytes:
        """The dialect's error event."""
        return self._renderer.error(error)

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return self._renderer.start()


class TranslatedWhole(_Translation):
    """Events as one body of the client's dialect."""

    streams = False
    keep_alive = b""

    def __init__(self, decoder: OpenAIDecoder, renderer: WholeRenderer) -> None:
        super().__init__(decoder)
        self._renderer = renderer
        self.content_type = renderer.content_type

    def feed(self, data: bytes) -> bytes:
        """Raises ProtocolError."""
        events = self._events(data)
        if events:
            self._renderer.events(events)
        return b""

    def end(self) -> bytes:
        """Raises RequestError and ProtocolError."""
        self._renderer.events(self._last())
        return self._renderer.end(self.usage)

    def broken(self, error: ErrorInfo) -> bytes:
        """It ends with its beginning."""
        return b""
