"""Tools as Gemini writes them: `[{"functionDeclarations": […]}]`."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.gemini_fields import DECLARATION_RULES, HOSTED_TOOLS
from extproc.dialects.gemini_json import camel, in_both_cases
from extproc.dialects.gemini_schema import json_schema
from extproc.dialects.json_body import (
    BodyLimits,
    check_weight,
    decode,
    descriptions,
    free_object,
    invalid,
    unsupported,
)
from extproc.ir import ToolDef

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Name: TypeAlias = Annotated[
    Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")], "1 to 128 letters, digits, '_', '.', ':' and '-'"
]


@in_both_cases
class _Declaration(Struct, rename="camel", forbid_unknown_fields=True):
    name: _Name
    description: Annotated[str | None, "a string"] = None
    parameters: Annotated[Raw | UnsetType, "a schema"] = UNSET
    parameters_json_schema: Annotated[Raw | UnsetType, "a JSON Schema"] = UNSET
    response: _Anything = UNSET
    response_json_schema: _Anything = UNSET
    behavior: _Anything = UNSET


@in_both_cases
class _Tool(Struct, rename="camel", forbid_unknown_fields=True):
    function_declarations: Annotated[list[_Declaration] | None, "an array of declarations"] = None
    # Below: tools that Google's servers run.
    retrieval: _Anything = UNSET
    computer_use: _Anything = UNSET
    file_search: _Anything = UNSET
    google_search: _Anything = UNSET
    google_maps: _Anything = UNSET
    code_execution: _Anything = UNSET
    enterprise_web_search: _Anything = UNSET
    google_search_retrieval: _Anything = UNSET
    parallel_ai_search: _Anything = UNSET
    url_context: _Anything = UNSET
    mcp_servers: _Anything = UNSET
    exa_ai_search: _Anything = UNSET


_TOOLS: msgspec.json.Decoder[list[_Tool] | _Tool | None] = msgspec.json.Decoder(list[_Tool] | _Tool | None)
_ALLOWED = {"tools": "an array of tools", "tools[]": "an object", **descriptions(_Tool, "tools[].")}
_JUDGED = tuple(DECLARATION_RULES)


def tools_of(raw_tools: Raw, losses: Losses, limits: BodyLimits) -> tuple[ToolDef, ...]:
    """Those that the client runs. Raises RequestError for others."""
    check_weight(raw_tools, "tools", limits.max_tools_bytes, limits.max_tools_containers)
    given = decode(_TOOLS, raw_tools, _ALLOWED, root="tools") or []
    tools: list[ToolDef] = []
    for index, tool in enumerate([given] if isinstance(given, _Tool) else given):
        path = f"tools[{index}]"
        for name in HOSTED_TOOLS:
            raw = getattr(tool, name)
            if raw is not UNSET and bytes(raw) not in (b"null", b"[]"):
                raise unsupported(
                    f"'{path}.{camel(name)}' is not supported (a tool of Google's servers): only functions are.",
                    f"{path}.{camel(name)}",
                    "unsupported_value",
                )
        for number, declaration in enumerate(tool.function_declarations or ()):
            tools.append(_function(declaration, f"{path}.functionDeclarations[{number}]", losses, limits))
    if len(tools) > limits.max_tools:
        raise invalid(f"Too many tools: at most {limits.max_tools} are allowed.", "tools", "array_above_max_length")
    return tuple(tools)


def _function(declared: _Declaration, path: str, losses: Losses, limits: BodyLimits) -> ToolDef:
    for name in _JUDGED:
        value = getattr(declared, name)
        if value is not UNSET:
            kind = f"functionDeclarations[*].{camel(name)}"
            judge(f"{path}.{camel(name)}", value, DECLARATION_RULES[name], losses, limits, kind=kind)
    parameters: dict[str, Any] | None = None
    raw = declared.parameters
    if raw is not UNSET and bytes(raw) != b"null":
        place = f"{path}.parameters"
        parameters = json_schema(free_object(raw, place, limits), place)
    raw = declared.parameters_json_schema
    if raw is not UNSET and bytes(raw) != b"null":
        place = f"{path}.parametersJsonSchema"
        if parameters is not None:
            raise invalid(f"'parameters' and '{place}' exclude each other.", place)
        parameters = free_object(raw, place, limits)
    return ToolDef(name=declared.name, description=declared.description, parameters=parameters)
