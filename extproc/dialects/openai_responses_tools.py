"""Tools as Responses writes them: `{"type": "function", "name": …}`, without an inner object."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.json_body import (
    BodyLimits,
    check_weight,
    decode,
    descriptions,
    free_object,
    invalid,
    unsupported,
)
from extproc.dialects.openai_responses_fields import TOOL_RULES
from extproc.dialects.openai_tools import TOOL_NAME
from extproc.ir import ToolDef

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Flag: TypeAlias = Annotated[bool | None, "a boolean"]


class _CustomFormat(Struct):
    type: Annotated[str, "'text'"]


class _Tool(Struct, forbid_unknown_fields=True):
    type: Annotated[str, "'function' or 'custom'"]
    name: TOOL_NAME
    description: Annotated[str | None, "a string"] = None
    parameters: _Anything = UNSET
    strict: _Flag = None
    format: Annotated[_CustomFormat | None, "an object"] = None
    output_schema: _Anything = UNSET
    defer_loading: _Anything = UNSET
    allowed_callers: _Anything = UNSET
    async_: _Anything = msgspec.field(default=UNSET, name="async")


class _AnyTool(Struct):
    type: Annotated[str, "a string"]


_ALLOWED = {"tools": "an array of tools", "tools[]": "a tool", **descriptions(_Tool, "tools[].")}
_TOOLS: msgspec.json.Decoder[list[Raw] | None] = msgspec.json.Decoder(list[Raw] | None)
_TOOL = msgspec.json.Decoder(_Tool)
_ANY_TOOL = msgspec.json.Decoder(_AnyTool)


def tools_of(raw_tools: Raw, losses: Losses, limits: BodyLimits) -> tuple[ToolDef, ...]:
    """The value of `tools`. Adds to `losses`; raises RequestError."""
    check_weight(raw_tools, "tools", limits.max_tools_bytes, limits.max_tools_containers)
    raws = decode(_TOOLS, raw_tools, _ALLOWED, root="tools") or []
    if len(raws) > limits.max_tools:
        raise invalid(f"Too many tools: at most {limits.max_tools} are allowed.", "tools", "array_above_max_length")
    return tuple([_tool(raw, f"tools[{index}]", losses, limits) for index, raw in enumerate(raws)])


def _tool(raw: Raw, path: str, losses: Losses, limits: BodyLimits) -> ToolDef:
    kind = decode(_ANY_TOOL, raw, _ALLOWED, root=path).type
    if kind not in ("function", "custom"):
        raise unsupported(
            f"Tools of the type '{kind[:64]}' are not supported, only 'function' and 'custom'.",
            f"{path}.type",
            "unsupported_value",
        )
    tool = decode(_TOOL, raw, _ALLOWED, root=path)
    for name, rule in TOOL_RULES.items():
        value = getattr(tool, "async_" if name == "async" else name)
        if value is not UNSET:
            judge(f"{path}.{name}", value, rule, losses, limits, kind=f"tools[*].{name}")
    if kind == "custom":
        if tool.format is not None and tool.format.type != "text":
            raise unsupported(
                "Tools whose input must follow a grammar are not supported; leave the format at 'text'.",
                f"{path}.format",
                "unsupported_value",
            )
        return ToolDef(name=tool.name, description=tool.description, custom=True)
    parameters = None
    if tool.parameters is not UNSET and bytes(tool.parameters) != b"null":
        parameters = free_object(tool.parameters, f"{path}.parameters", limits)
    return ToolDef(name=tool.name, description=tool.description, parameters=parameters, strict=tool.strict)
