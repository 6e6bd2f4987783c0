"""Tool calls that models write as Python: `[f(a=1), g(b="x")]`, Llama 4 and small Llama 3.2."""

from __future__ import annotations

import ast
import json
import re

from extproc.output.sink import Sink
from extproc.output.source import Source, Steps

__all__ = ["pythonic"]

_MARKS = re.compile(r"""['"\\()\[\]{}]""")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_NOT_NAME = re.compile(r"[^A-Za-z0-9_.]")
_MOST_NAME = 256
_MOST_CHARS = 1 << 20


def pythonic(source: Source, sink: Sink) -> Steps[None]:
    """The list stands at the beginning, or between `<|python_start|>` and `<|python_end|>`."""
    source.keep()
    yield from source.spaces()
    yield from source.literal("<|python_start|>")
    while True:
        yield from _list(source, sink)
        while (marker := (yield from source.until(("<|python_start|>", "<|python_end|>"), sink.text))) is not None:
            if marker == "<|python_start|>":
                source.keep(marker)
                break
            if not sink.calls:
                sink.text(marker)
        else:
            return


def _list(source: Source, sink: Sink) -> Steps[None]:
    """A list of calls, or what was kept as text."""
    yield from source.spaces()
    pieces: list[str] = []
    if (yield from source.next()) == "[":
        yield from source.literal("[")
        yield from source.spaces()
        name = yield from source.word(_NOT_NAME, _MOST_NAME)
        if name in sink.tools and (yield from source.next()) == "(":
            pieces += ("[", name)
            if (yield from _to_the_end(source, pieces)) and (calls := _calls("".join(pieces), sink)):
                source.kept()
                for name, arguments in calls:
                    sink.start(name)
                    sink.arguments(arguments)
                    sink.end()
                return
    sink.text(source.kept())


def _to_the_end(source: Source, pieces: list[str]) -> Steps[bool]:
    """Take up to the bracket that closes the list."""
    open_ = ["]"]
    size = 0
    while size < _MOST_CHARS:
        piece = yield from source.word(_MARKS, 4096)
        mark = yield from source.next()
        if not mark:
            return False
        pieces.append(piece)
        size += len(piece) + 1
        if not _MARKS.match(mark):
            continue
        yield from source.literal(mark)
        pieces.append(mark)
        quote = open_[-1] if open_[-1] in "'\"" else ""
        if mark == "\\":
            escaped = yield from source.next()
            yield from source.literal(escaped)
            pieces.append(escaped)
        elif quote:
            if mark == quote:
                open_.pop()
        elif mark in "'\"":
            open_.append(mark)
        elif mark in _CLOSERS:
            open_.append(_CLOSERS[mark])
        elif mark == open_[-1]:
            open_.pop()
            if not open_:
                return True
        else:
            return False
    return False


def _calls(text: str, sink: Sink) -> list[tuple[str, str]]:
    """Names and arguments; nothing where any of it is no call of a tool that there is, with literal arguments."""
    try:
        tree = ast.parse(text, mode="eval").body
        assert isinstance(tree, ast.List)
        calls = []
        for each in tree.elts:
            if not isinstance(each, ast.Call) or each.args:
                return []
            name = ast.unparse(each.func)
            if name not in sink.tools or any(keyword.arg is None for keyword in each.keywords):
                return []
            values = {str(keyword.arg): _literal(keyword.value) for keyword in each.keywords}
            calls.append((name, json.dumps(values, ensure_ascii=False)))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return []
    return calls


def _literal(node: ast.expr) -> object:
    """A Python literal; the names that JSON has are understood, too. Raises ValueError."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    return ast.literal_eval(node)


_JSON_NAMES = {"true": True, "false": False, "null": None}
