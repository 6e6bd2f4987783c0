"""Tools and the choice among them, as Chat Completions writes them: `{"type": "function", "function": {…}}`.

Names of tools in a choice are also taken as the Responses API writes them, without the inner object, for SDKs and
frameworks mix the two.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from extproc.dialects.json_body import (
    BodyLimits,
    check_depth,
    check_weight,
    decode,
    descriptions,
    invalid,
    unsupported,
)
from extproc.ir import ToolChoice, ToolDef

__all__ = ["TOOL_NAME", "tool_choice_of", "tools_of"]

TOOL_NAME: TypeAlias = Annotated[
    Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")],
    "a name of 1 to 128 letters, digits and '_', '-', '.', ':', '/'",
]
"""What OpenAI takes, and what clients of other servers send beside it."""


class _Function(Struct, forbid_unknown_fields=True):
    name: TOOL_NAME
    description: Annotated[str | None, "a string"] = None
    parameters: Annotated[dict[str, Any] | None, "a JSON Schema"] = None
    strict: Annotated[bool | None, "a boolean"] = None


class _Grammar(Struct, forbid_unknown_fields=True):
    syntax: Annotated[Literal["lark", "regex"], "'lark' or 'regex'"]
    definition: Annotated[str, "a string"]


class _Format(Struct, forbid_unknown_fields=True):
    type: Annotated[Literal["text", "grammar"], "'text' or 'grammar'"]
    grammar: Annotated[_Grammar | None, "an object"] = None


class _Custom(Struct, forbid_unknown_fields=True):
    name: TOOL_NAME
    description: Annotated[str | None, "a string"] = None
    format: Annotated[_Format | None, "an object"] = None


class _Tool(Struct, forbid_unknown_fields=True):
    type: Annotated[str, "'function' or 'custom'"] = "function"
    function: Annotated[_Function | None, "an object"] = None
    custom: Annotated[_Custom | None, "an object"] = None


class _Named(Struct):
    name: Annotated[str, "a tool's name"]


class _Chosen(Struct):
    type: Annotated[str, "'function', 'custom' or 'allowed_tools'"]
    name: Annotated[str | None, "a tool's name"] = None
    function: Annotated[_Named | None, "an object with a name"] = None
    custom: Annotated[_Named | None, "an object with a name"] = None


class _Allowed(Struct, forbid_unknown_fields=True):
    mode: Annotated[Literal["auto", "required"], "'auto' or 'required'"]
    tools: Annotated[Annotated[list[_Chosen], Meta(min_length=1, max_length=1024)], "a non-empty array of tools"]


class _Choice(_Chosen):
    allowed_tools: Annotated[_Allowed | None, "an object with mode and tools"] = None
    mode: Annotated[Literal["auto", "required"] | None, "'auto' or 'required'"] = None
    tools: Annotated[
        Annotated[list[_Chosen], Meta(min_length=1, max_length=1024)] | None, "a non-empty array of tools"
    ] = None


_MODES: dict[str, Literal["auto", "none", "required"]] = {"auto": "auto", "none": "none", "required": "required"}
_TOOLS = msgspec.json.Decoder(list[_Tool])
_CHOICE: msgspec.json.Decoder[str | _Choice] = msgspec.json.Decoder(str | _Choice)
_TOOLS_ALLOWED = {"tools": "an array of tools", "tools[]": "a tool"} | descriptions(_Tool, "tools[].")
_CHOICE_ALLOWED = {"tool_choice": "'none', 'auto', 'required' or an object"} | descriptions(_Choice, "tool_choice.")


def tools_of(raw: Raw, limits: BodyLimits) -> tuple[ToolDef, ...]:
    """The value of `tools`. Raises RequestError."""
    check_weight(raw, "tools", limits.max_tools_bytes, limits.max_tools_containers)
    tools = decode(_TOOLS, raw, _TOOLS_ALLOWED, root="tools")
    if len(tools) > limits.max_tools:
        raise invalid(f"Too many tools: at most {limits.max_tools} are allowed.", "tools", "array_above_max_length")
    return tuple(_tool(tool, f"tools[{index}]", limits) for index, tool in enumerate(tools))


def _tool(tool: _Tool, path: str, limits: BodyLimits) -> ToolDef:
    if tool.type == "function":
        function = tool.function
        if function is None:
            raise invalid(
                f"Missing required parameter: '{path}.function'.", f"{path}.function", "missing_required_parameter"
            )
        check_depth(function.parameters, f"{path}.function.parameters", limits)
        return ToolDef(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=function.strict,
        )
    if tool.type == "custom":
        custom = tool.custom
        if custom is None:
            raise invalid(
                f"Missing required parameter: '{path}.custom'.", f"{path}.custom", "missing_required_parameter"
            )
        form = custom.format
        if form is not None and form.type == "grammar":
            raise unsupported(
                "Tools whose input must follow a grammar are not supported; leave the format at 'text'.",
                f"{path}.custom.format",
                "unsupported_value",
            )
        return ToolDef(name=custom.name, description=custom.description, custom=True)
    raise unsupported(
        f"Tools of the type '{tool.type[:64]}' are not supported, only 'function' and 'custom'.",
        f"{path}.type",
        "unsupported_value",
    )


def tool_choice_of(raw: Raw, limits: BodyLimits) -> ToolChoice:
    """The value of `tool_choice`. Whether the tools exist is checked elsewhere. Raises RequestError."""
    check_weight(raw, "tool_choice", limits.max_option_bytes, limits.max_option_containers)
    choice = decode(_CHOICE, raw, _CHOICE_ALLOWED, root="tool_choice")
    if isinstance(choice, str):
        if choice in _MODES:
            return ToolChoice(_MODES[choice])
        raise invalid(
            f"Invalid value for 'tool_choice': expected {_CHOICE_ALLOWED['tool_choice']}.",
            "tool_choice",
            "invalid_value",
        )
    if choice.type == "allowed_tools":
        allowed = choice.allowed_tools
        mode, tools, inner = (choice.mode, choice.tools, "") if allowed is None else (allowed.mode, allowed.tools, True)
        path = "tool_choice.allowed_tools" if inner else "tool_choice"
        if mode is None or tools is None:
            raise invalid(
                "Missing required parameter: 'tool_choice.allowed_tools'.",
                "tool_choice.allowed_tools",
                "missing_required_parameter",
            )
        return ToolChoice(mode, tuple(_name(each, f"{path}.tools[{at}]") for at, each in enumerate(tools)))
    return ToolChoice("named", (_name(choice, "tool_choice"),))


def _name(chosen: _Chosen, path: str) -> str:
    if chosen.type not in ("function", "custom"):
        raise unsupported(
            f"A choice of the type '{chosen.type[:64]}' is not supported.", f"{path}.type", "unsupported_value"
        )
    named = chosen.function if chosen.type == "function" else chosen.custom
    name = named.name if named is not None else chosen.name
    if name is None:
        field = f"{path}.{chosen.type}"
        raise invalid(f"Missing required parameter: '{field}'.", field, "missing_required_parameter")
    return name
