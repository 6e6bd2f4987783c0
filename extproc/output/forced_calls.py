"""Tool calls that must come: what the engine is bound to write, and how that is read.

One tool: the object of its arguments. Any of several: an array of `{"name": …, "parameters": {…}}`. So do vLLM and
SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extproc.ir import ErrorInfo, ErrorKind, OutputFormat, RequestError, ToolChoice, ToolDef
from extproc.output.json_calls import call_object
from extproc.output.sink import Sink
from extproc.output.source import Source, Steps

__all__ = ["forced_array", "forced_format", "forced_object"]

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_CUSTOM_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def forced_format(tools: Sequence[ToolDef], choice: ToolChoice, *, parallel: bool) -> OutputFormat | None:
    """What the engine must be bound to; None where the model may choose. Raises RequestError.

    `tools`: the allowed ones, at least one.
    """
    if choice.mode == "named":
        named = next(tool for tool in tools if tool.name == choice.names[0])
        return OutputFormat(kind="json_schema", schema=_parameters(named), path="tool_choice")
    if choice.mode != "required":
        return None
    shared: dict[str, Any] = {}
    each = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [tool.name]},
                "parameters": _without_definitions(tool, shared),
            },
            "required": ["name", "parameters"],
        }
        for tool in tools
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": each}}
    if not parallel:
        schema["maxItems"] = 1
    return OutputFormat(kind="json_schema", schema=schema | shared, path="tool_choice")


def _parameters(tool: ToolDef) -> dict[str, Any]:
    return _CUSTOM_INPUT if tool.custom else tool.parameters or _ANY_OBJECT


def _without_definitions(tool: ToolDef, shared: dict[str, Any]) -> dict[str, Any]:
    """The tool's schema; what its references point to moves to the top, where they find it."""
    schema = _parameters(tool)
    for key in ("$defs", "definitions"):
        own = schema.get(key)
        if not isinstance(own, dict):
            continue
        schema = {name: value for name, value in schema.items() if name != key}
        common = shared.setdefault(key, {})
        for name, value in own.items():
            if common.setdefault(name, value) != value:
                raise RequestError(
                    ErrorInfo(
                        kind=ErrorKind.INVALID_REQUEST,
                        message=f"Several tools define '{name}' in '{key}' of their parameters, and differently.",
                        param="tools",
                        code="invalid_value",
                    )
                )
    return schema


def forced_object(name: str, source: Source, sink: Sink) -> Steps[None]:
    """The arguments of one tool."""
    source.keep()
    if (yield from source.spaces()) == "{":
        source.kept()
        sink.start(name)
        yield from source.value(sink.arguments)
        sink.end()
    else:
        sink.text(source.kept())
    yield from source.rest(sink.text)


def forced_array(source: Source, sink: Sink) -> Steps[None]:
    """An array of calls."""
    source.keep()
    if (yield from source.spaces()) == "[":
        yield from source.literal("[")
        more = True
        while more:
            yield from source.spaces()
            if not (yield from call_object(source, sink)):
                break
            source.kept()
            source.keep()
            yield from source.spaces()
            more = yield from source.literal(",")
        if not more and (yield from source.literal("]")):
            source.kept()
            source.keep()
    sink.text(source.kept())
    yield from source.rest(sink.text)
