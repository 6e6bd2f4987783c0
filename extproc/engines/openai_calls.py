"""Tool calls that come in pieces, several at a time perhaps, put in order: one is open, the others wait.

The first call is told while it comes. A later one is told at once where the arguments before it are complete JSON, and
else waits until the choice goes on to something else or ends.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from extproc.engines.base import ProtocolError
from extproc.ir import Event, ToolArgsDelta, ToolCallEnd, ToolCallStart

_JSON = msgspec.json.Decoder(Raw)


class _Input(Struct):
    input: str = ""


_INPUT = msgspec.json.Decoder(_Input)


class _Call:
    __slots__ = ("arguments", "call_id", "closed", "name", "started")

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.started = False
        self.closed = False


class CallOrder:
    """The tool calls of one choice."""

    __slots__ = ("_by_key", "_calls", "_choice", "_custom", "_live", "_make_id")

    def __init__(self, choice: int, make_id: Callable[[int, int], str], custom: frozenset[str]) -> None:
        """`make_id`: for calls without an id, of choice and index. `custom`: tools that take any text."""
        self._choice = choice
        self._make_id = make_id
        self._custom = custom
        self._calls: list[_Call] = []
        self._by_key: dict[int, _Call] = {}  # by the engine's index
        self._live = 0  # index of the first call that is not closed

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def open(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._live < len(self._calls)

    def piece(self, key: int | None, call_id: str, name: str, arguments: str, events: list[Event]) -> None:
        """More of a call. Raises ProtocolError where the call has ended already."""
        calls = self._calls
        if key is None:
            key = len(calls) if call_id or not calls else len(calls) - 1
        call = self._by_key.get(key)
        if call is None or (call_id and call.call_id and call_id != call.call_id):
            # Servers are known that give all calls the same index.
            call = self._by_key[key] = _Call()
            calls.append(call)
        call.call_id = call.call_id or call_id
        call.name = call.name or name
        if call.closed:
            if arguments.strip():
                raise ProtocolError("more of a tool call after its end")
            return
        if arguments:
            call.arguments.append(arguments)
        while calls[self._live] is not call and _is_json("".join(calls[self._live].arguments)):
            self._close(calls[self._live], events)
        if calls[self._live] is call and call.name:
            self._tell(call, arguments, events)

    def close(self, events: list[Event], *, cut: bool = False) -> None:
        """No call goes on. `cut`: the answer was broken off, perhaps within one. Raises ProtocolError."""
        calls = self._calls
        while self._live < len(calls):
            self._close(calls[self._live], events, cut=cut)

    def _tell(self, call: _Call, arguments: str, events: list[Event]) -> None:
        if call.name in self._custom:
            return  # its text is known when all of the JSON around it is
        choice, index = self._choice, self._live
        if not call.started:
            call.started = True
            events.append(ToolCallStart(choice, index, call.call_id or self._make_id(choice, index), call.name))
            arguments = "".join(call.arguments)
        if arguments:
            events.append(ToolArgsDelta(choice, index, arguments))

    def _close(self, call: _Call, events: list[Event], *, cut: bool = False) -> None:
        if not call.name:
            raise ProtocolError("a tool call without a name")
        choice, index = self._choice, self._live
        text = "".join(call.arguments)
        if call.name in self._custom:
            text = _input_of(text)
            call_id = call.call_id or self._make_id(choice, index)
            events.append(ToolCallStart(choice, index, call_id, call.name, custom=True))
            if text:
                events.append(ToolArgsDelta(choice, index, text))
        else:
            if not call.started:
                self._tell(call, "", events)
            if not text.strip() and not cut:
                events.append(ToolArgsDelta(choice, index, "{}"))
                text += "{}"
        call.closed = True
        events.append(ToolCallEnd(choice, index, text))
        self._live += 1


def _is_json(text: str) -> bool:
    try:
        _JSON.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _input_of(arguments: str) -> str:
    """What a custom tool gets; the arguments themselves where they are not of the form that was asked for."""
    try:
        return _INPUT.decode(arguments).input
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
