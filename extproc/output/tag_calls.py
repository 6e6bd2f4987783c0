"""Tool calls that models write with a tag around each parameter, whose values have no quotes."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from extproc.output.json_calls import call_object
from extproc.output.sink import Sink
from extproc.output.source import Emit, Source, Steps

__all__ = ["glm", "qwen3_coder"]

_MOST_NAME = 256
_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
_NOT_NAME = re.compile(r"[^A-Za-z0-9_.:/-]")


def qwen3_coder(source: Source, sink: Sink) -> Steps[None]:
    """`<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`: Qwen3-Coder, Qwen 3.5."""
    while (marker := (yield from source.until(("<tool_call>", "<function="), sink.text))) is not None:
        source.keep(marker)
        if marker == "<tool_call>":
            if (yield from source.spaces()) == "{" and (yield from call_object(source, sink)):
                source.kept()
                yield from source.spaces()
                yield from source.literal("</tool_call>")
                continue
            if not (yield from source.literal("<function=")):
                sink.text(source.kept())
                continue
        name = yield from source.line(">", _MOST_NAME)
        if name is None or not _NAME.fullmatch(name := name.strip().strip("\"'")):
            sink.text(source.kept())
            continue
        source.kept()
        sink.start(name)
        sink.arguments("{")
        first = True
        while True:
            yield from source.spaces()
            if not (yield from source.literal("<parameter=")):
                break
            key = yield from source.line(">", _MOST_NAME)
            if key is None:
                break
            yield from source.literal("\n")
            ends = ("</parameter>", "<parameter=", "</function>")
            if not (yield from _parameter(source, sink, key.strip(), first, ends)):
                break
            first = False
        if (yield from source.literal("</function>")):
            sink.arguments("}")
        sink.end()
        yield from source.spaces()
        yield from source.literal("</tool_call>")


def glm(source: Source, sink: Sink) -> Steps[None]:
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`: GLM 4.5 and later."""
    while (yield from source.until(("<tool_call>",), sink.text)) is not None:
        source.keep("<tool_call>")
        yield from source.spaces()
        name = yield from source.word(_NOT_NAME, _MOST_NAME)
        yield from source.spaces()
        closed = bool(name) and (yield from source.literal("</tool_call>"))
        if not name or not (closed or (yield from source.literal("<arg_key>"))):
            sink.text(source.kept())
            continue
        source.kept()
        sink.start(name)
        sink.arguments("{")
        first = True
        while not closed:
            key = yield from source.line("</arg_key>", _MOST_NAME)
            yield from source.spaces()
            if key is None or not (yield from source.literal("<arg_value>")):
                break
            if not (yield from _parameter(source, sink, key.strip(), first, ("</arg_value>",))):
                break
            first = False
            yield from source.spaces()
            closed = yield from source.literal("</tool_call>")
            if not closed and not (yield from source.literal("<arg_key>")):
                break
        if closed:
            sink.arguments("}")
        sink.end()


def _parameter(source: Source, sink: Sink, key: str, first: bool, ends: tuple[str, ...]) -> Steps[bool]:
    """Take a value and the tag behind it. False where the text ends before that, or another tag stands there."""
    sink.arguments(("" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
    schema = sink.parameter(key)
    if _is_text(schema):
        writer = _StringWriter(sink.arguments)
        sink.arguments('"')
        marker = yield from source.until(ends, writer.piece)
        if marker is not None:
            sink.arguments('"')
    else:
        pieces: list[str] = []
        marker = yield from source.until(ends, pieces.append)
        sink.arguments(_typed("".join(pieces).removesuffix("\n"), schema))
    return marker == ends[0]


class _StringWriter:
    """Pieces of a text to pieces of a JSON string. The newline before the closing tag belongs to the tag."""

    __slots__ = ("_emit", "_newline")

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._newline = ""

    def piece(self, text: str) -> None:
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        self._emit(json.dumps(text[: len(text) - len(self._newline)], ensure_ascii=False)[1:-1])


def _is_text(schema: Any) -> bool:
    """Whether every value is a string; so are those of parameters that are not described."""
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    if kind is None:
        return not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}
    return bool(kind == "string")


def _typed(text: str, schema: Any) -> str:
    """The value as JSON: as it stands where it is some, else by what Python calls it, else as a string."""
    bare = text.strip()
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        pass
    else:
        return bare
    try:
        return json.dumps(ast.literal_eval(bare), ensure_ascii=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
