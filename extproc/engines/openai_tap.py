"""What is read of an answer that goes through as it came: usage, the end, errors; and the little that is changed.

Events pass whole and as they are, so an answer that breaks off within one is never ended with half of it. JSON is read
only of events that hold usage or an error: once or twice an answer.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct

from extproc.engines.base import ProtocolError
from extproc.engines.openai_errors import error_of_event
from extproc.engines.openai_usage import EngineUsage
from extproc.engines.sse import MOST_LINE_BYTES
from extproc.ir import ErrorInfo, Usage

_NO_USAGE = re.compile(rb',\s*"usage"\s*:\s*null')
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')
_DONE = re.compile(rb"^data: ?\[DONE\]\s*$", re.MULTILINE)
_END_OF_EVENT = re.compile(rb"\r?\n\r?\n")


class _Event(Struct):
    usage: EngineUsage | None = None
    choices: list[Raw] | None = None


_EVENT = msgspec.json.Decoder(_Event)


class NameChange:
    """The model's name in an answer, put back to what the client wrote."""

    __slots__ = ("_compact", "_new", "_old", "_renamed")

    def __init__(self, engine_name: str, client_name: str) -> None:
        """As the engine calls the model, and as the client does."""
        names = {_json(engine_name), _json(engine_name).replace(b"/", b"\\/")}
        # An unescaped quotation mark is never within a string, so no text of the model's looks like this.
        self._old = re.compile(rb'("model"\s*:\s*)(?:' + b"|".join(map(re.escape, sorted(names))) + b")")
        self._new = _json(client_name)
        self._compact = b'"model":' + _json(engine_name)  # as most engines write it
        self._renamed = b'"model":' + self._new

    def of(self, text: bytes) -> bytes:
        """The text with the client's name, at the first place. Hot: once per event."""
        compact = self._compact
        if compact in text:
            return text.replace(compact, self._renamed, 1)
        new = self._new
        return self._old.sub(lambda found: found[1] + new, text, count=1)


class StreamTap:
    """Of an answer in server-sent events, cut anywhere."""

    __slots__ = ("_choices", "_done", "_events", "_finished", "_hides", "_name", "_rest", "_usage", "begun", "error")

    def __init__(self, choices: int, *, hides_usage: bool, name: NameChange | None) -> None:
        """`hides_usage`: the client has not asked for the event that tells it."""
        self._choices = choices
        self._hides = hides_usage
        self._name = name
        self._rest = b""
        self._done = False
        self._finished = 0
        self._events = 0
        self._usage: EngineUsage | None = None
        self.begun = False
        """An event with data has come."""
        self.error: ErrorInfo | None = None
        """What the engine told in an event."""

    @property
    def complete(self) -> bool:
        """The answer is whole: a stream that ends now has not been broken off."""
        return self._done or self._finished >= self._choices

    @property
    def usage(self) -> Usage:
        """Counts as the engine gives them; where it gives none, a token for each event."""
        usage = self._usage
        if usage is not None:
            return usage.neutral()
        return Usage(completion_tokens=max(self._events - 1, 0))

    def feed(self, piece: bytes) -> bytes:
        """What of it goes to the client now. Hot. Raises ProtocolError for an event that does not end."""
        text = self._rest + piece if self._rest else piece
        if text.endswith((b"\n\n", b"\r\n\r\n")):
            self._rest = b""
        else:
            cut = max(_after(text, b"\n\n"), _after(text, b"\r\n\r\n"))
            self._rest = text[cut:]
            if len(self._rest) > MOST_LINE_BYTES:
                raise ProtocolError(f"an event of over {MOST_LINE_BYTES} bytes")
            if not cut:
                return b""
            text = text[:cut]
        return self._pass(text)

    def end(self) -> bytes:
        """The rest, where it is the last of a whole answer; what was broken off is dropped."""
        rest, self._rest = self._rest, b""
        if not rest:
            return b""
        passed = self._pass(rest)
        return passed if self.complete or self.error is not None else b""

    def _pass(self, text: bytes) -> bytes:
        self.begun = self.begun or b"data:" in text
        if b'"error"' in text and self.error is None:
            self._find_error(text)
        if b'"finish_reason":"' in text or b'"finish_reason": "' in text:
            self._finished += len(_FINISHED.findall(text))
        if b"[DONE]" in text and _DONE.search(text):
            self._done = True
        self._events += 1
        name = self._name
        if b'"usage"' not in text:
            if name is None:
                return text
            if text.count(b"\n\n") == 1:  # one event, as mostly
                return name.of(text)
        return self._changed(text)

    def _changed(self, text: bytes) -> bytes:
        """Event by event."""
        out: list[bytes] = []
        at = 0
        for end in [found.end() for found in _END_OF_EVENT.finditer(text)] + [len(text)]:
            event, at = text[at:end], end
            if not event:
                continue
            if b'"usage"' in event:
                event = self._of_usage(event)
            out.append(event if self._name is None else self._name.of(event))
        return b"".join(out)

    def _of_usage(self, event: bytes) -> bytes:
        if self._hides and _NO_USAGE.search(event):
            return _NO_USAGE.sub(b"", event)
        try:
            value = _EVENT.decode(_data(event))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return event
        if value.usage is None:
            return event
        self._usage = value.usage
        return b"" if self._hides and not value.choices else event

    def _find_error(self, text: bytes) -> None:
        for event in _END_OF_EVENT.split(text):
            if b'"error"' in event:
                self.error = self.error or error_of_event(_data(event))


class WholeTap:
    """Of an answer that is one JSON body."""

    def __init__(self, name: NameChange | None) -> None:
        self._name = name
        self.usage = Usage()
        self.error: ErrorInfo | None = None

    def read(self, body: bytes) -> bytes:
        """The body for the client. Raises ProtocolError for what is no JSON object, such as a body that was cut."""
        self.error = error_of_event(body) if b'"error"' in body else None
        try:
            value = _EVENT.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if self.error is not None:
                return body
            raise ProtocolError(f"the answer is no JSON: {error}") from None
        if value.usage is not None:
            self.usage = value.usage.neutral()
        return body if self._name is None else self._name.of(body)


def _after(text: bytes, end: bytes) -> int:
    place = text.rfind(end)
    return 0 if place < 0 else place + len(end)


def _data(event: bytes) -> bytes:
    """The data of one event."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)
