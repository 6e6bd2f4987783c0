"""Tool calls that models write as JSON: `{"name": …, "arguments": {…}}` with some markup around."""

from __future__ import annotations

import re

from extproc.output.sink import Sink
from extproc.output.source import Source, Steps

__all__ = ["call_object", "deepseek", "hermes", "llama3_json", "mistral"]

_NAME_KEYS = frozenset(("name", "function", "tool_name"))
_ARGUMENT_KEYS = frozenset(("arguments", "parameters"))
_BARE_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | {"type", "id"}
_NOT_IDENTIFIER = re.compile(r"[^A-Za-z0-9_.:/-]")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAME = 256


def call_object(source: Source, sink: Sink, *, bare: bool = False) -> Steps[bool]:
    """Take one call. False where it is none, with nothing emitted; what was taken must have been kept.

    `bare`: nothing around it says that it is a call, so it must be one of a tool that there is.
    """
    if not (yield from source.literal("{")):
        return False
    name: str | None = None
    early: str | None = None  # arguments that come before the name
    called = first = False
    while True:
        character = yield from source.spaces()
        if character == "}":
            break
        if first and not (yield from source.literal(",")):
            return _leave(sink, called)
        first = True
        yield from source.spaces()
        key = yield from source.string()
        if key is None or (bare and key not in _BARE_KEYS):
            return _leave(sink, called)
        yield from source.spaces()
        if not (yield from source.literal(":")):
            return _leave(sink, called)
        character = yield from source.spaces()
        if key in _NAME_KEYS and name is None and character == '"':
            name = yield from source.string()
            if not name or (bare and name not in sink.tools):
                return _leave(sink, called)
        elif key in _ARGUMENT_KEYS and early is None and not called:
            if name is not None and character == "{":
                called = True
                sink.start(name)
                if not (yield from source.value(sink.arguments)):
                    return _leave(sink, called)
            else:
                early = yield from _arguments(source, character)
                if early is None:
                    return False
        else:
            ignored: list[str] = []
            if not (yield from source.value(ignored.append)):
                return _leave(sink, called)
    if name is None:
        return False
    yield from source.literal("}")
    if not called:
        sink.start(name)
        sink.arguments(early or "{}")
    sink.end()
    return True


def _leave(sink: Sink, called: bool) -> bool:
    """A call that has begun stays one, with the arguments that there are."""
    if called:
        sink.end()
    return called


def _arguments(source: Source, character: str) -> Steps[str | None]:
    """Arguments that are not streamed: before the name, or as a string that holds the JSON text."""
    if character == '"':
        return (yield from source.string())
    pieces: list[str] = []
    if not (yield from source.value(pieces.append)):
        return None
    text = "".join(pieces)
    return "{}" if text == "null" else text


def hermes(source: Source, sink: Sink) -> Steps[None]:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen 2.5 and 3, and others."""
    while (yield from source.until(("<tool_call>",), sink.text)) is not None:
        source.keep("<tool_call>")
        yield from source.spaces()
        if not (yield from call_object(source, sink)):
            sink.text(source.kept())
            continue
        source.kept()
        yield from source.spaces()
        yield from source.literal("</tool_call>")


def llama3_json(source: Source, sink: Sink) -> Steps[None]:
    """`{"name": …, "parameters": …}`, alone or behind `<|python_tag|>`, several with `;` between: Llama 3.1 to 3.3."""
    source.keep()
    yield from source.spaces()
    while True:
        yield from source.literal("<|python_tag|>")
        while True:
            character = yield from source.spaces()
            if character != "{" or not (yield from call_object(source, sink, bare=True)):
                break
            source.kept()
            source.keep()
            yield from source.spaces()
            yield from source.literal(";")
        sink.text(source.kept())
        if (yield from source.until(("<|python_tag|>",), sink.text)) is None:
            return
        source.keep("<|python_tag|>")


def mistral(source: Source, sink: Sink) -> Steps[None]:
    """`[TOOL_CALLS]` and an array of calls, or before each call `[TOOL_CALLS]name[ARGS]` and the arguments."""
    while (yield from source.until(("[TOOL_CALLS]",), sink.text)) is not None:
        source.keep("[TOOL_CALLS]")
        character = yield from source.spaces()
        if character == "[":
            yield from source.literal("[")
            more = True
            while more and (yield from source.spaces()) == "{":
                if not (yield from call_object(source, sink)):
                    break
                source.kept()
                source.keep()
                yield from source.spaces()
                more = yield from source.literal(",")
            if not more and (yield from source.spaces()) == "]":
                yield from source.literal("]")
                source.kept()
            else:
                sink.text(source.kept())
            continue
        name = yield from source.word(_NOT_IDENTIFIER, _MOST_NAME)
        if (yield from source.literal("[CALL_ID]")):
            yield from source.word(_NOT_ID, _MOST_NAME)
        yield from source.literal("[ARGS]")
        if not name or (yield from source.spaces()) != "{":
            sink.text(source.kept())
            continue
        source.kept()
        sink.start(name)
        yield from source.value(sink.arguments)
        sink.end()


_CALLS = "<｜tool▁calls▁begin｜>"
_CALL = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_CALL_END = "<｜tool▁call▁end｜>"
_CALLS_END = "<｜tool▁calls▁end｜>"


def deepseek(source: Source, sink: Sink) -> Steps[None]:
    """DeepSeek V3 and R1 (`function`, name, JSON in a code block) and V3.1 (name, JSON), with the same markers."""
    while (marker := (yield from source.until((_CALLS, _CALL, _CALLS_END), sink.text))) is not None:
        if marker == _CALLS_END:
            if not sink.calls:
                sink.text(marker)
            continue
        source.keep(marker)
        if marker == _CALLS:
            yield from source.spaces()
            if not (yield from source.literal(_CALL)):
                sink.text(source.kept())
                continue
        name = yield from source.line(_SEPARATOR, _MOST_NAME)
        block = False
        if name is not None and name.strip() == "function" and (yield from source.next()) != "{":
            name = yield from source.line("\n", _MOST_NAME)
            yield from source.spaces()
            block = yield from source.literal("```json")
        character = yield from source.spaces()
        if not name or not name.strip() or character != "{":
            sink.text(source.kept())
            continue
        source.kept()
        sink.start(name.strip())
        yield from source.value(sink.arguments)
        sink.end()
        yield from source.spaces()
        if block:
            yield from source.literal("```")
            yield from source.spaces()
        yield from source.literal(_CALL_END)
