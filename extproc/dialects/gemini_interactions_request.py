"""Requests to Gemini's Interactions: the body's schema, and its translation into the neutral form.

Source: the types of Google's SDK from its second major on. All names are in snake case. Nothing is stored: the whole
conversation comes as `input`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, Rule, judge
from extproc.dialects.gemini_interactions_steps import ITEM_KINDS, Item, turns_of
from extproc.dialects.json_body import (
    BodyLimits,
    check_strings,
    check_weight,
    decode,
    descriptions,
    free_object,
    invalid,
    unsupported,
)
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_tools import TOOL_NAME
from extproc.ir import (
    ChatRequest,
    OutputFormat,
    ReasoningRequest,
    RequestError,
    Sampling,
    Text,
    ToolChoice,
    ToolDef,
    Turn,
)

_UINT31 = 2**31 - 1
_INT64 = 2**63

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Optional: TypeAlias = Annotated[str | None, "a string"]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
_Mode: TypeAlias = Annotated[
    Literal["auto", "any", "none", "validated"] | None, "one of 'auto', 'any', 'none' and 'validated'"
]


class _AllowedTools(Struct, forbid_unknown_fields=True):
    mode: _Mode = None
    tools: Annotated[list[str] | None, "an array of names"] = None


class _ChoiceObject(Struct, forbid_unknown_fields=True):
    allowed_tools: Annotated[_AllowedTools | None, "an object"] = None


class _Generation(Struct, forbid_unknown_fields=True):
    max_output_tokens: Annotated[Annotated[int, Meta(ge=1, le=_UINT31)] | None, "a positive integer"] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, "a number from 0 to 2"] = None
    top_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    seed: Annotated[Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, "an integer of 64 bits"] = None
    stop_sequences: Annotated[
        Annotated[list[_StopString], Meta(max_length=64)] | None,
        "an array of up to 64 strings, each of 1 to 500 characters",
    ] = None
    thinking_level: Annotated[
        Literal["minimal", "low", "medium", "high", "xhigh"] | None,
        "one of 'minimal', 'low', 'medium', 'high' and 'xhigh'",
    ] = None
    thinking_summaries: Annotated[Literal["auto", "none"] | None, "'auto' or 'none'"] = None
    tool_choice: Annotated[
        Literal["auto", "any", "none", "validated"] | _ChoiceObject | None,
        "one of 'auto', 'any', 'none' and 'validated', or an object with allowed_tools",
    ] = None
    image_config: _Anything = UNSET
    speech_config: _Anything = UNSET
    transcription_config: _Anything = UNSET
    video_config: _Anything = UNSET


class _Tool(Struct):
    type: Annotated[str, "'function'"]


class _FunctionTool(Struct, forbid_unknown_fields=True):
    name: TOOL_NAME
    type: Annotated[str, "'function'"] = "function"
    description: _Optional = None
    parameters: Annotated[Raw | UnsetType, "a JSON Schema"] = UNSET
    defer_loading: _Anything = UNSET
    short_description: _Anything = UNSET


class _Body(Struct, forbid_unknown_fields=True):
    input: Annotated[str | Item | list[Item], "a string, a content, or an array of contents or steps"]
    model: Annotated[Annotated[str, Meta(min_length=1, max_length=512)] | None, "a model's name"] = None
    stream: Annotated[bool | None, "a boolean"] = None
    system_instruction: _Optional = None
    generation_config: Annotated[_Generation | None, "an object"] = None
    tools: Annotated[Raw | UnsetType, "an array of tools"] = UNSET
    response_format: Annotated[Raw | UnsetType, "an object, or an array with one"] = UNSET
    response_mime_type: _Optional = None
    # Below: what no engine gets, kept as text until it is judged.
    agent: _Anything = UNSET
    agent_config: _Anything = UNSET
    background: _Anything = UNSET
    cached_content: _Anything = UNSET
    continuation_token: _Anything = UNSET
    environment: _Anything = UNSET
    labels: _Anything = UNSET
    previous_interaction_id: _Anything = UNSET
    response_modalities: _Anything = UNSET
    safety_settings: _Anything = UNSET
    service_tier: _Anything = UNSET
    store: _Anything = UNSET
    webhook_config: _Anything = UNSET


_NOT_STORED = "answers are not stored"
_RULES: Mapping[str, Rule] = {
    "store": Rule(neutral=(False,), loss=_NOT_STORED),
    "labels": Rule(neutral=({},), loss=_NOT_STORED),
    "safety_settings": Rule(neutral=([],), loss="the engine does not filter content"),
    "service_tier": Rule(loss="there is one tier"),
    "background": Rule(neutral=(False,)),
    "cached_content": Rule(neutral=("",)),
    "continuation_token": Rule(neutral=("",)),
    "environment": Rule(),
    "agent": Rule(refusal="Agents are not supported: name a 'model'."),
    "agent_config": Rule(),
    "response_modalities": Rule(neutral=([], ["text"])),
    "webhook_config": Rule(),
    "previous_interaction_id": Rule(
        refusal="'previous_interaction_id' is not supported, for nothing is stored: send the whole conversation."
    ),
}
_GENERATION_RULES: Mapping[str, Rule] = {
    name: Rule() for name in ("image_config", "speech_config", "transcription_config", "video_config")
}
_TOOL_RULES: Mapping[str, Rule] = {
    "defer_loading": Rule(neutral=(False,), loss="the model sees all tools from the beginning"),
    "short_description": Rule(loss="the model sees the whole description"),
}

_ALLOWED: Mapping[str, str] = descriptions(_Body) | {"input.type": ITEM_KINDS, "input[].type": ITEM_KINDS}
_BODY = msgspec.json.Decoder(_Body)
_TOOLS: msgspec.json.Decoder[list[Raw] | None] = msgspec.json.Decoder(list[Raw] | None)
_TOOL = msgspec.json.Decoder(_Tool)
_FUNCTION_TOOL = msgspec.json.Decoder(_FunctionTool)
_TOOLS_ALLOWED = {"tools": "an array of tools", "tools[]": "an object", **descriptions(_FunctionTool, "tools[].")}


def parse_interaction(body: bytes, limits: BodyLimits) -> ChatRequest:
    """The request in neutral form. Raises RequestError with the field's path."""
    check_strings(body, limits)
    asked = decode(_BODY, body, _ALLOWED)
    losses: Losses = {}
    _judge(asked, "", _RULES, losses, limits)
    if asked.model is None:
        raise invalid("Missing required parameter: 'model'.", "model", "missing_required_parameter")
    turns = turns_of(asked.input, limits)
    if turns[-1].role == "assistant":
        raise invalid("The last step of 'input' must be the user's or a function's result.", "input")
    if asked.system_instruction:
        turns.insert(0, Turn("system", (Text(asked.system_instruction),)))
    generation = asked.generation_config or _Generation()
    _judge(generation, "generation_config.", _GENERATION_RULES, losses, limits)
    tools = () if asked.tools is UNSET else _tools(asked.tools, losses, limits)
    choice, strict = _choice(generation.tool_choice)
    if strict:
        tools = tuple([msgspec.structs.replace(tool, strict=True) for tool in tools])
    return ChatRequest(
        model=asked.model,
        turns=tuple(turns),
        sampling=_sampling(generation),
        stream=bool(asked.stream),
        tools=tools,
        tool_choice=choice,
        reasoning=_reasoning(generation),
        output=_output(asked, limits),
        losses=listed(losses),
    )


def _judge(held: Struct, prefix: str, rules: Mapping[str, Rule], losses: Losses, limits: BodyLimits) -> None:
    for name, rule in rules.items():
        raw = getattr(held, name)
        if raw is not UNSET:
            judge(f"{prefix}{name}", raw, rule, losses, limits)


def _sampling(asked: _Generation) -> Sampling:
    knobs: dict[str, Any] = {}
    for name in ("temperature", "top_p", "seed"):
        value = getattr(asked, name)
        if value is not None:
            knobs[name] = value
    if asked.max_output_tokens is not None:
        knobs["max_tokens"] = asked.max_output_tokens
    if asked.stop_sequences:
        knobs["stop"] = tuple(asked.stop_sequences)
    return Sampling(**knobs)


def _reasoning(asked: _Generation) -> ReasoningRequest:
    knobs: dict[str, Any] = {}
    if asked.thinking_level is not None:
        knobs["effort"] = asked.thinking_level
    if asked.thinking_summaries is not None:
        knobs["visibility"] = "summary" if asked.thinking_summaries == "auto" else "omitted"
    return ReasoningRequest(**knobs)


def _choice(asked: str | _ChoiceObject | None) -> tuple[ToolChoice, bool]:
    """The choice, and whether arguments are bound to their schemas."""
    mode = None if isinstance(asked, _ChoiceObject) else asked
    names: tuple[str, ...] = ()
    if isinstance(asked, _ChoiceObject):
        allowed = asked.allowed_tools or _AllowedTools()
        mode, names = allowed.mode, tuple(allowed.tools or ())
    if mode == "none":
        return ToolChoice("none"), False
    if mode == "any":
        return ToolChoice("named" if len(names) == 1 else "required", names), False
    return ToolChoice("auto", names), mode == "validated"


def _tools(raw_tools: Raw, losses: Losses, limits: BodyLimits) -> tuple[ToolDef, ...]:
    check_weight(raw_tools, "tools", limits.max_tools_bytes, limits.max_tools_containers)
    raws = decode(_TOOLS, raw_tools, _TOOLS_ALLOWED, root="tools") or []
    if len(raws) > limits.max_tools:
        raise invalid(f"Too many tools: at most {limits.max_tools} are allowed.", "tools", "array_above_max_length")
    tools: list[ToolDef] = []
    for index, raw in enumerate(raws):
        path = f"tools[{index}]"
        kind = decode(_TOOL, raw, _TOOLS_ALLOWED, root=path).type
        if kind != "function":
            raise unsupported(
                f"Tools of the type '{kind[:64]}' are not supported (servers run no tools): only functions are.",
                f"{path}.type",
                "unsupported_value",
            )
        tool = decode(_FUNCTION_TOOL, raw, _TOOLS_ALLOWED, root=path)
        for name, rule in _TOOL_RULES.items():
            value = getattr(tool, name)
            if value is not UNSET:
                judge(f"{path}.{name}", value, rule, losses, limits, kind=f"tools[*].{name}")
        parameters = None
        if tool.parameters is not UNSET and bytes(tool.parameters) != b"null":
            parameters = free_object(tool.parameters, f"{path}.parameters", limits)
        tools.append(ToolDef(name=tool.name, description=tool.description, parameters=parameters))
    return tuple(tools)


def _output(asked: _Body, limits: BodyLimits) -> OutputFormat | None:
    """A format is an object with a type, or a schema by itself; an array may hold one."""
    raw, path = asked.response_format, "response_format"
    mime = asked.response_mime_type
    if raw is UNSET or bytes(raw) == b"null":
        return _output_of(mime, None, "response_mime_type")
    if bytes(raw).startswith(b"["):
        several = decode(_TOOLS, raw, {path: "an array"}, root=path) or []
        if len(several) != 1:
            raise unsupported("One text is answered: 'response_format' may hold one format.", path, "unsupported_value")
        raw, path = several[0], f"{path}[0]"
    form = free_object(raw, path, limits)
    kind = form.get("type")
    if kind in ("audio", "image", "video"):
        raise _no_form(kind, path)
    if kind != "text":
        return OutputFormat(kind="json_schema", schema=form, path=path)
    schema = form.get("schema")
    if schema is not None and not isinstance(schema, dict):
        place = f"{path}.schema"
        raise invalid(f"Invalid type for '{place}': expected a JSON Schema.", place, "invalid_type")
    return _output_of(form.get("mime_type") or mime, schema, path)


def _output_of(mime: object, schema: dict[str, Any] | None, path: str) -> OutputFormat | None:
    if mime not in (None, "text/plain", "application/json"):
        raise _no_form(str(mime), path)
    if schema is not None:
        return OutputFormat(kind="json_schema", schema=schema, path=path)
    return OutputFormat(kind="json_object", path=path) if mime == "application/json" else None


def _no_form(kind: str, path: str) -> RequestError:
    return unsupported(f"Answers of the form '{kind[:64]}' are not supported.", path, "unsupported_value")
