"""Requests to generateContent: the body's schema, and its translation into the neutral form.

Source: the types of Google's SDKs and what they send, which mixes camel and snake case. Counting tokens takes the same
body, also within `generateContentRequest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.base import Inbound
from extproc.dialects.field_rules import Losses, Rule, judge
from extproc.dialects.gemini_errors import STREAMS, streams_array
from extproc.dialects.gemini_fields import (
    BODY_RULES,
    CALLING_RULES,
    GENERATION_RULES,
    TOOL_CONFIG_RULES,
)
from extproc.dialects.gemini_json import camel, in_both_cases
from extproc.dialects.gemini_parts import Content, PartReader, PlainContent
from extproc.dialects.gemini_schema import json_schema
from extproc.dialects.gemini_tools import tools_of
from extproc.dialects.json_body import BodyLimits, check_strings, decode, descriptions, free_object, invalid
from extproc.dialects.openai_chat_messages import listed
from extproc.ir import (
    ChatRequest,
    OutputFormat,
    ReasoningRequest,
    Sampling,
    Text,
    ToolChoice,
    ToolDef,
    Turn,
)

_UINT31 = 2**31 - 1
_INT64 = 2**63
_MOST_STOPS = 64

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
_Penalty: TypeAlias = Annotated[Annotated[float, Meta(ge=-2, le=2)] | None, "a number from -2 to 2"]


class Own(Struct, frozen=True):
    """What the answer needs of the request."""

    array: bool  # the stream is one JSON array


@in_both_cases
class _Thinking(Struct, rename="camel", forbid_unknown_fields=True):
    include_thoughts: Annotated[bool | None, "a boolean"] = None
    thinking_budget: Annotated[Annotated[int, Meta(ge=-1, le=_UINT31)] | None, "an integer of at least -1"] = None
    thinking_level: Annotated[str | None, "one of 'MINIMAL', 'LOW', 'MEDIUM', 'HIGH' and 'XHIGH'"] = None


class _CamelGeneration(Struct, rename="camel", forbid_unknown_fields=True):
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, "a number from 0 to 2"] = None
    top_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    top_k: Annotated[Annotated[float, Meta(ge=0, le=_UINT31)] | None, "an integer of at least 0"] = None
    candidate_count: Annotated[Annotated[int, Meta(ge=1)] | None, "a positive integer"] = None
    max_output_tokens: Annotated[Annotated[int, Meta(ge=1, le=_UINT31)] | None, "a positive integer"] = None
    stop_sequences: Annotated[
        Annotated[list[_StopString], Meta(max_length=_MOST_STOPS)] | None,
        f"an array of up to {_MOST_STOPS} strings, each of 1 to 500 characters",
    ] = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    seed: Annotated[Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, "an integer of 64 bits"] = None
    response_logprobs: Annotated[bool | None, "a boolean"] = None
    logprobs: Annotated[Annotated[int, Meta(ge=0, le=20)] | None, "an integer from 0 to 20"] = None
    response_mime_type: Annotated[str | None, "'text/plain', 'application/json' or 'text/x.enum'"] = None
    response_schema: Annotated[Raw | UnsetType, "a schema"] = UNSET
    response_json_schema: Annotated[Raw | UnsetType, "a JSON Schema"] = UNSET
    thinking_config: Annotated[_Thinking | None, "an object"] = None
    # Below: what no engine gets, kept as text until it is judged.
    media_resolution: _Anything = UNSET
    audio_timestamp: _Anything = UNSET
    audio_transcription_config: _Anything = UNSET
    enable_enhanced_civic_answers: _Anything = UNSET
    enable_affective_dialog: _Anything = UNSET
    routing_config: _Anything = UNSET
    model_selection_config: _Anything = UNSET
    response_modalities: _Anything = UNSET
    speech_config: _Anything = UNSET
    image_config: _Anything = UNSET
    response_format: _Anything = UNSET
    translation_config: _Anything = UNSET
    continuation_token: _Anything = UNSET


@in_both_cases
class _Generation(_CamelGeneration, rename="camel", forbid_unknown_fields=True):
    pass


@in_both_cases
class _Calling(Struct, rename="camel", forbid_unknown_fields=True):
    mode: Annotated[str | None, "one of 'AUTO', 'ANY', 'NONE' and 'VALIDATED'"] = None
    allowed_function_names: Annotated[list[str] | None, "an array of names"] = None
    stream_function_call_arguments: _Anything = UNSET


@in_both_cases
class _ToolConfig(Struct, rename="camel", forbid_unknown_fields=True):
    function_calling_config: Annotated[_Calling | None, "an object"] = None
    retrieval_config: _Anything = UNSET
    include_server_side_tool_invocations: _Anything = UNSET


class _CamelBody(Struct, rename="camel", forbid_unknown_fields=True):
    contents: Annotated[list[Content] | Content | None, "a non-empty array of contents"] = None
    model: Annotated[str | None, "a model's name"] = None  # again; the one in the path counts
    system_instruction: Annotated[Content | None, "an object with parts"] = None
    generation_config: Annotated[_CamelGeneration | None, "an object"] = None
    tools: Annotated[Raw | UnsetType, "an array of tools"] = UNSET
    tool_config: Annotated[_ToolConfig | None, "an object"] = None
    generate_content_request: Annotated[Raw | UnsetType, "an object"] = UNSET  # when tokens are counted
    # Below: what no engine gets, kept as text until it is judged.
    safety_settings: _Anything = UNSET
    labels: _Anything = UNSET
    service_tier: _Anything = UNSET
    store: _Anything = UNSET
    model_armor_config: _Anything = UNSET
    cached_content: _Anything = UNSET


@in_both_cases
class _Body(_CamelBody, rename="camel", forbid_unknown_fields=True):
    generation_config: Annotated[_Generation | None, "an object"] = None


class _PlainBody(_CamelBody, rename="camel", forbid_unknown_fields=True):
    """What nearly all clients send, in half the time: names in camel case, and no part with more than its data."""

    contents: list[PlainContent] | PlainContent | None = None  # type: ignore[assignment]


_ALLOWED: Mapping[str, str] = descriptions(_Body)
_BODY = msgspec.json.Decoder(_Body)
_PLAIN_BODY = msgspec.json.Decoder(_PlainBody)
_WRAPPED = "generateContentRequest"
_WRAPPED_ALLOWED: Mapping[str, str] = {_WRAPPED: "an object", **descriptions(_Body, f"{_WRAPPED}.")}
_SAME_NAME = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
_rare_of_body = attrgetter(*BODY_RULES)
_NONE_OF_BODY = (UNSET,) * len(BODY_RULES)
_rare_of_generation = attrgetter(*GENERATION_RULES)
_NONE_OF_GENERATION = (UNSET,) * len(GENERATION_RULES)
_NOTHING_SAID = Turn("assistant", (Text(""),))
_LEVELS = ("minimal", "low", "medium", "high", "xhigh")
_MODES: Mapping[str, Literal["auto", "required", "none"]] = {
    "": "auto",
    "MODE_UNSPECIFIED": "auto",
    "AUTO": "auto",
    "VALIDATED": "auto",
    "ANY": "required",
    "NONE": "none",
}


def model_of(inbound: Inbound) -> str:
    """Which model a path names. Names of other publishers than Google have the publisher's before them."""
    name = unquote(inbound.argument)
    if "/publishers/" not in inbound.path:
        return name
    publisher = inbound.path.partition("/publishers/")[2].partition("/")[0]
    return name if publisher == "google" else f"{unquote(publisher)}/{name}"


def parse_generate(inbound: Inbound, body: bytes, limits: BodyLimits, *, counting: bool = False) -> ChatRequest:
    """The request in neutral form. Raises RequestError with the field's path.

    With `counting` nothing is asked for but the prompt. Hot: one decode of the whole body, then one pass over its
    contents.
    """
    check_strings(body, limits)
    try:
        asked: _CamelBody = _PLAIN_BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        asked = decode(_BODY, body, _ALLOWED)  # which also tells what is wrong
    if asked.generate_content_request is not UNSET:
        if not counting or asked.contents is not None:
            raise invalid(
                f"'{_WRAPPED}' is allowed in place of 'contents' where tokens are counted.", _WRAPPED, "invalid_value"
            )
        asked = decode(_BODY, asked.generate_content_request, _WRAPPED_ALLOWED, root=_WRAPPED)
    losses: Losses = {}
    if _rare_of_body(asked) != _NONE_OF_BODY:
        _judge(asked, "", BODY_RULES, losses, limits)
    reader = PartReader(losses, limits)
    contents = [asked.contents] if isinstance(asked.contents, Content | PlainContent) else asked.contents
    if not contents:
        raise invalid("Missing required parameter: 'contents'.", "contents", "missing_required_parameter")
    if len(contents) > limits.max_messages:
        raise invalid(
            f"Too many contents: at most {limits.max_messages} are allowed.", "contents", "array_above_max_length"
        )
    turns = reader.turns(contents)
    continues = turns[-1].role == "assistant"
    if continues:
        if type(turns[-1].parts[-1]) is not Text:
            raise invalid(
                "The last content must not end with a thought or a function's call: nothing can be continued there.",
                f"contents[{len(contents) - 1}]",
            )
        if turns[-1] == _NOTHING_SAID:
            del turns[-1]
            continues = False
    system = asked.system_instruction
    if system is not None and system.parts:
        turns.insert(0, Turn("system", tuple(reader.parts(system, "system", "systemInstruction"))))
    tools = () if asked.tools is UNSET else tools_of(asked.tools, losses, limits)
    generation = asked.generation_config
    if generation is not None and _rare_of_generation(generation) != _NONE_OF_GENERATION:
        _judge(generation, "generationConfig.", GENERATION_RULES, losses, limits)
    choice, tools = _choice(asked.tool_config, tools, losses, limits)
    streamed = inbound.path.endswith(STREAMS)
    return ChatRequest(
        model=model_of(inbound),
        turns=tuple(turns),
        sampling=Sampling() if generation is None else _sampling(generation, limits),
        stream=streamed,
        tools=tools,
        tool_choice=choice,
        reasoning=_reasoning(None if generation is None else generation.thinking_config),
        output=None if generation is None else _output(generation, limits),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        losses=listed(losses),
        own=Own(streamed and streams_array(inbound)),
    )


def _judge(held: Struct, prefix: str, rules: Mapping[str, Rule], losses: Losses, limits: BodyLimits) -> None:
    """What no engine gets."""
    for name, rule in rules.items():
        raw = getattr(held, name)
        if raw is not UNSET:
            judge(prefix + camel(name), raw, rule, losses, limits)


def _sampling(asked: _CamelGeneration, limits: BodyLimits) -> Sampling:
    knobs: dict[str, Any] = {}
    for name in _SAME_NAME:
        value = getattr(asked, name)
        if value is not None:
            knobs[name] = value
    if asked.top_k is not None:
        if asked.top_k != int(asked.top_k):
            raise invalid(
                "Invalid value for 'generationConfig.topK': expected an integer of at least 0.",
                "generationConfig.topK",
                "invalid_value",
            )
        knobs["top_k"] = int(asked.top_k)
    if asked.max_output_tokens is not None:
        knobs["max_tokens"] = asked.max_output_tokens
    if asked.stop_sequences:
        knobs["stop"] = tuple(asked.stop_sequences)
    if asked.candidate_count is not None:
        most = limits.max_choices
        if asked.candidate_count > most:
            place = "generationConfig.candidateCount"
            raise invalid(f"Invalid value for '{place}': expected at most {most}.", place, "integer_above_max_value")
        knobs["n"] = asked.candidate_count
    if asked.response_logprobs:
        knobs["top_logprobs"] = asked.logprobs or 0
    elif asked.logprobs:
        raise invalid(
            "'generationConfig.logprobs' needs 'generationConfig.responseLogprobs'.", "generationConfig.logprobs"
        )
    return Sampling(**knobs)


def _reasoning(asked: _Thinking | None) -> ReasoningRequest:
    if asked is None:
        return ReasoningRequest()
    knobs: dict[str, Any] = {}
    budget = asked.thinking_budget
    if asked.include_thoughts is not None:
        knobs["visibility"] = "summary" if asked.include_thoughts else "omitted"
    if asked.thinking_level and asked.thinking_level.upper() != "THINKING_LEVEL_UNSPECIFIED":
        place = "generationConfig.thinkingConfig.thinkingLevel"
        level = asked.thinking_level.lower()
        if budget is not None:
            raise invalid(f"'thinkingBudget' and '{place}' exclude each other.", place)
        if level not in _LEVELS:
            levels = "one of 'MINIMAL', 'LOW', 'MEDIUM', 'HIGH' and 'XHIGH'"
            raise invalid(f"Invalid value for '{place}': expected {levels}.", place, "invalid_value")
        knobs["effort"] = level
    if budget is not None:
        knobs["enabled"] = budget != 0
        if budget > 0:
            knobs["budget_tokens"] = budget
    return ReasoningRequest(**knobs)


def _output(asked: _CamelGeneration, limits: BodyLimits) -> OutputFormat | None:
    mime = (asked.response_mime_type or "").lower()
    schema: dict[str, Any] | None = None
    path = "generationConfig.responseMimeType"
    for name, raw in (("responseSchema", asked.response_schema), ("responseJsonSchema", asked.response_json_schema)):
        if raw is UNSET or bytes(raw) == b"null":
            continue
        if schema is not None:
            raise invalid(f"'{path}' and 'generationConfig.{name}' exclude each other.", path)
        path = f"generationConfig.{name}"
        schema = free_object(raw, path, limits)
        if name == "responseSchema":
            schema = json_schema(schema, path)
    if mime == "text/x.enum":
        choices = (schema or {}).get("enum")
        if not choices or not all(isinstance(choice, str) for choice in choices):
            raise invalid("'text/x.enum' needs a schema with an 'enum' of strings.", path, "invalid_value")
        return OutputFormat(kind="choice", choices=tuple(choices), path=path)
    if mime not in ("", "application/json") and (schema is not None or mime != "text/plain"):
        place = "generationConfig.responseMimeType"
        allowed = "'application/json'" if schema is not None else "'text/plain', 'application/json' or 'text/x.enum'"
        raise invalid(f"Invalid value for '{place}': expected {allowed}.", place, "invalid_value")
    if schema is not None:
        return OutputFormat(kind="json_schema", schema=schema, path=path)
    return OutputFormat(kind="json_object", path=path) if mime == "application/json" else None


def _choice(
    asked: _ToolConfig | None, tools: tuple[ToolDef, ...], losses: Losses, limits: BodyLimits
) -> tuple[ToolChoice, tuple[ToolDef, ...]]:
    """The choice, and the tools: `VALIDATED` binds their arguments."""
    if asked is None:
        return ToolChoice(), tools
    _judge(asked, "toolConfig.", TOOL_CONFIG_RULES, losses, limits)
    calling = asked.function_calling_config
    if calling is None:
        return ToolChoice(), tools
    place = "toolConfig.functionCallingConfig"
    _judge(calling, f"{place}.", CALLING_RULES, losses, limits)
    word = (calling.mode or "").upper()
    if word not in _MODES:
        modes = "one of 'AUTO', 'ANY', 'NONE' and 'VALIDATED'"
        raise invalid(f"Invalid value for '{place}.mode': expected {modes}.", f"{place}.mode", "invalid_value")
    mode = _MODES[word]
    names = tuple(calling.allowed_function_names or ()) if mode != "none" else ()
    known = {tool.name for tool in tools}
    for index, name in enumerate(names):
        if name not in known:
            where = f"{place}.allowedFunctionNames[{index}]"
            raise invalid(f"'{where}' names {name[:64]!r}, which is none of the tools.", where, "invalid_value")
    if mode == "required" and not tools:
        raise invalid(f"'{place}.mode' needs 'tools'.", f"{place}.mode")
    if word == "VALIDATED":
        tools = tuple([msgspec.structs.replace(tool, strict=True) for tool in tools])
    return ToolChoice("named" if mode == "required" and len(names) == 1 else mode, names), tools
