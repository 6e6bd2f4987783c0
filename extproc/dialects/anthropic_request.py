"""Messages requests: the body's schema, and its translation into the neutral form.

Source: the types of the official SDK in the versions of both API versions, `2023-06-01` and `2026-10-21`. The later one
dropped `temperature`, `top_p` and `top_k`; engines have them, so they count whatever the version is. Counting tokens
takes the same body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.anthropic_blocks import BLOCK_TYPES, Block, BlockReader, TextBlock, system_parts
from extproc.dialects.anthropic_errors import request_id_of
from extproc.dialects.anthropic_fields import (
    ATTRIBUTION_LOSS,
    BETAS_LOSS,
    BODY_RULES,
    HOSTED_TOOLS,
    OUTPUT_RULES,
    TOOL_RULES,
    USER_LOSS,
)
from extproc.dialects.base import Inbound
from extproc.dialects.field_rules import Losses, judge
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
from extproc.ir import (
    ChatRequest,
    OutputFormat,
    Part,
    ReasoningRequest,
    Sampling,
    Text,
    ToolChoice,
    ToolDef,
    Turn,
)

_UINT31 = 2**31 - 1
_MOST_STOPS = 64
_LEAST_BUDGET = 1024
_ATTRIBUTION = "x-anthropic-billing-header:"

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Role: TypeAlias = Literal["user", "assistant", "system"]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]


class Own(Struct, frozen=True):
    """What the answer needs of the request."""

    request_id: str | None


class _Message(Struct, forbid_unknown_fields=True, gc=False):
    role: Annotated[_Role, "one of 'user', 'assistant' and 'system'"]
    content: Annotated[str | list[Block], "a string or an array of content blocks"]


class _Metadata(Struct, forbid_unknown_fields=True):
    user_id: Annotated[str | None, "a string"] = None


class _Thinking(Struct, forbid_unknown_fields=True):
    type: Annotated[
        Literal["enabled", "adaptive", "disabled", "between_tools"],
        "one of 'enabled', 'adaptive', 'disabled' and 'between_tools'",
    ]
    budget_tokens: Annotated[
        Annotated[int, Meta(ge=_LEAST_BUDGET, le=_UINT31)] | None, f"an integer of at least {_LEAST_BUDGET}"
    ] = None
    display: Annotated[Literal["summarized", "omitted"] | None, "one of 'summarized' and 'omitted'"] = None


class _Format(Struct, forbid_unknown_fields=True):
    type: Annotated[Literal["json_schema"], "'json_schema'"]
    schema: Annotated[Raw, "an object"]


class _OutputConfig(Struct, forbid_unknown_fields=True):
    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None, "one of 'low', 'medium', 'high', 'xhigh' and 'max'"
    ] = None
    format: Annotated[_Format | None, "an object"] = None
    task_budget: _Anything = UNSET


class _ToolChoice(Struct, forbid_unknown_fields=True):
    type: Annotated[Literal["auto", "any", "tool", "none"], "one of 'auto', 'any', 'tool' and 'none'"]
    name: Annotated[str | None, "a string"] = None
    disable_parallel_tool_use: Annotated[bool | None, "a boolean"] = None


class _Tool(Struct, forbid_unknown_fields=True):
    name: Annotated[Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")], "1 to 128 letters, digits, '_' and '-'"]
    input_schema: Annotated[Raw, "an object"]
    type: Annotated[Literal["custom"] | None, "'custom'"] = None
    description: Annotated[str | None, "a string"] = None
    strict: Annotated[bool | None, "a boolean"] = None
    cache_control: _Anything = UNSET
    defer_loading: _Anything = UNSET
    eager_input_streaming: _Anything = UNSET
    input_examples: _Anything = UNSET
    allowed_callers: _Anything = UNSET


class _AnyTool(Struct):
    type: Annotated[str | None, "a string"] = None


class _Body(Struct, forbid_unknown_fields=True):
    model: Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]
    messages: Annotated[Annotated[list[_Message], Meta(min_length=1)], "a non-empty array of messages"]
    max_tokens: Annotated[Annotated[int, Meta(ge=0, le=_UINT31)] | None, "a positive integer"] = None
    system: Annotated[str | list[TextBlock] | None, "a string or an array of text blocks"] = None
    stream: Annotated[bool | None, "a boolean"] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    top_p: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, "a number above 0 and at most 1"] = None
    top_k: Annotated[Annotated[int, Meta(ge=0, le=_UINT31)] | None, "an integer of at least 0"] = None
    stop_sequences: Annotated[
        Annotated[list[_StopString], Meta(max_length=_MOST_STOPS)] | None,
        f"an array of up to {_MOST_STOPS} strings, each of 1 to 500 characters",
    ] = None
    metadata: Annotated[_Metadata | None, "an object"] = None
    thinking: Annotated[_Thinking | None, "an object"] = None
    output_config: Annotated[_OutputConfig | None, "an object"] = None
    output_format: Annotated[_Format | None, "an object"] = None  # its name in an earlier beta
    tool_choice: Annotated[_ToolChoice | None, "an object"] = None
    tools: Annotated[Raw | UnsetType, "an array of tools"] = UNSET
    # Below: what no engine gets, kept as text until it is judged.
    cache_control: _Anything = UNSET
    service_tier: _Anything = UNSET
    speed: _Anything = UNSET
    diagnostics: _Anything = UNSET
    user_profile_id: _Anything = UNSET
    context_management: _Anything = UNSET
    billing_policy: _Anything = UNSET
    fallback_credit_token: _Anything = UNSET
    fallbacks: _Anything = UNSET
    container: _Anything = UNSET
    mcp_servers: _Anything = UNSET
    compaction: _Anything = UNSET
    thread: _Anything = UNSET
    inference_geo: _Anything = UNSET


_RARE = tuple(BODY_RULES)
_SHOWN_BLOCKS = "one of 'text', 'image', 'document' and 'search_result'"
_ALLOWED: Mapping[str, str] = descriptions(_Body) | {
    "messages[].content[].type": BLOCK_TYPES,
    "messages[].content[].content": "a string or an array of blocks",
    "messages[].content[].content[].type": _SHOWN_BLOCKS,
    "messages[].content[].source": "an object, or the string that a search result has there",
    "messages[].content[].content[].source": "an object, or the string that a search result has there",
    "system[].type": "'text'",
}
_TOOL_ALLOWED = {"tools": "an array of tools", "tools[]": "an object", **descriptions(_Tool, "tools[].")}
_BODY = msgspec.json.Decoder(_Body)
_TOOLS: msgspec.json.Decoder[list[Raw] | None] = msgspec.json.Decoder(list[Raw] | None)
_TOOL = msgspec.json.Decoder(_Tool)
_ANY_TOOL = msgspec.json.Decoder(_AnyTool)
_SAME_NAME = ("temperature", "top_p", "top_k", "max_tokens")
_NOTHING_SAID = Turn("assistant", (Text(""),))
_JUDGED_OF_TOOLS = tuple(TOOL_RULES)


def parse_messages(inbound: Inbound, body: bytes, limits: BodyLimits, *, counting: bool = False) -> ChatRequest:
    """The request in neutral form. Raises RequestError with the field's path.

    With `counting` nothing is asked for but the prompt. Hot: one decode of the whole body, then one pass over its
    messages.
    """
    check_strings(body, limits)
    asked = decode(_BODY, body, _ALLOWED)
    if not counting and not asked.max_tokens:
        if asked.max_tokens is None:
            raise invalid("Missing required parameter: 'max_tokens'.", "max_tokens", "missing_required_parameter")
        raise unsupported(
            "A 'max_tokens' of 0, which fills a cache and answers nothing, is not supported.", "max_tokens"
        )
    losses: Losses = {}
    for name in _RARE:
        raw = getattr(asked, name)
        if raw is not UNSET:
            judge(name, raw, BODY_RULES[name], losses, limits)
    if "anthropic-beta" in inbound.headers:
        losses["anthropic-beta"] = BETAS_LOSS
    turns = _turns(asked, losses, limits)
    continues = turns[-1].role == "assistant"
    if continues:
        if type(turns[-1].parts[-1]) is not Text:
            raise invalid(
                "The last message must not end with thinking or a tool's call: nothing can be continued there.",
                f"messages[{len(asked.messages) - 1}]",
            )
        if turns[-1] == _NOTHING_SAID:
            turns = turns[:-1]
            continues = False
    user = None if asked.metadata is None else asked.metadata.user_id
    if user is not None:
        losses["metadata.user_id"] = USER_LOSS
    choice = asked.tool_choice
    tools = () if asked.tools is UNSET else _tools(asked.tools, losses, limits)
    return ChatRequest(
        model=asked.model,
        turns=turns,
        sampling=_sampling(asked),
        stream=bool(asked.stream) and not counting,
        tools=tools,
        tool_choice=_choice(choice) if choice is not None else ToolChoice(),
        parallel_tool_calls=UNSET
        if choice is None or choice.disable_parallel_tool_use is None
        else not choice.disable_parallel_tool_use,
        reasoning=_reasoning(asked),
        output=_output(asked, losses, limits),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        user=user,
        losses=listed(losses),
        own=Own(request_id_of(inbound)),
    )


def _turns(asked: _Body, losses: Losses, limits: BodyLimits) -> tuple[Turn, ...]:
    """The conversation. Messages of the same role in a row are one turn, as this API has it."""
    messages = asked.messages
    if len(messages) > limits.max_messages:
        raise invalid(
            f"Too many messages: at most {limits.max_messages} are allowed.", "messages", "array_above_max_length"
        )
    turns: list[Turn] = []
    if asked.system:
        turns += _system(asked.system, losses, limits)
    reader = BlockReader(losses, limits)
    role: _Role | None = None
    parts: list[Part] = []
    for index, message in enumerate(messages):
        if message.role != role:
            if role is not None:
                turns.append(Turn(role, tuple(parts) or (Text(""),)))
            role = message.role
            parts = []
        content = message.content
        if type(content) is str:
            parts.append(Text(content))
        else:
            path = f"messages[{index}].content"
            if not content and role != "assistant":
                raise invalid(
                    f"Invalid value for '{path}': expected a string or a non-empty array of content blocks.",
                    path,
                    "empty_array",
                )
            parts += reader.parts(content, role, path)  # type: ignore[arg-type]
    assert role is not None
    turns.append(Turn(role, tuple(parts) or (Text(""),)))
    return tuple(turns)


def _system(system: str | list[TextBlock], losses: Losses, limits: BodyLimits) -> list[Turn]:
    """What some clients say of themselves in the first block differs with each request, and no cache would match."""
    if isinstance(system, str):
        return [Turn("system", (Text(system),))]
    texts = system_parts(system, losses, limits)
    if texts and texts[0].startswith(_ATTRIBUTION):
        losses["system[0]"] = ATTRIBUTION_LOSS
        del texts[0]
    return [Turn("system", tuple([Text(text) for text in texts]))] if texts else []


def _sampling(asked: _Body) -> Sampling:
    knobs: dict[str, Any] = {}
    for name in _SAME_NAME:
        value = getattr(asked, name)
        if value is not None:
            knobs[name] = value
    if asked.stop_sequences:
        knobs["stop"] = tuple(asked.stop_sequences)
    return Sampling(**knobs)


def _reasoning(asked: _Body) -> ReasoningRequest:
    knobs: dict[str, Any] = {}
    thinking = asked.thinking
    if thinking is not None:
        enabled = thinking.type in ("enabled", "adaptive")
        knobs["enabled"] = enabled
        if thinking.type == "enabled" and thinking.budget_tokens is None:
            raise invalid(
                "Missing required parameter: 'thinking.budget_tokens'.",
                "thinking.budget_tokens",
                "missing_required_parameter",
            )
        if enabled and thinking.budget_tokens is not None:
            knobs["budget_tokens"] = thinking.budget_tokens
        if thinking.display is not None:
            knobs["visibility"] = "omitted" if thinking.display == "omitted" else "summary"
    config = asked.output_config
    if config is not None and config.effort is not None:
        knobs["effort"] = config.effort
    return ReasoningRequest(**knobs) if knobs else ReasoningRequest()


def _output(asked: _Body, losses: Losses, limits: BodyLimits) -> OutputFormat | None:
    config = asked.output_config
    wanted, path = asked.output_format, "output_format"
    if config is not None:
        if config.task_budget is not UNSET:
            name = "output_config.task_budget"
            judge(name, config.task_budget, OUTPUT_RULES["task_budget"], losses, limits)
        if config.format is not None:
            if wanted is not None:
                raise invalid("'output_format' and 'output_config.format' exclude each other.", path)
            wanted, path = config.format, "output_config.format"
    if wanted is None:
        return None
    schema = free_object(wanted.schema, f"{path}.schema", limits)
    return OutputFormat(kind="json_schema", schema=schema, path=path)


def _choice(choice: _ToolChoice) -> ToolChoice:
    if choice.type == "tool":
        if not choice.name:
            raise invalid(
                "Missing required parameter: 'tool_choice.name'.", "tool_choice.name", "missing_required_parameter"
            )
        return ToolChoice("named", (choice.name,))
    if choice.type == "any":
        return ToolChoice("required")
    return ToolChoice(choice.type)


def _tools(raw_tools: Raw, losses: Losses, limits: BodyLimits) -> tuple[ToolDef, ...]:
    check_weight(raw_tools, "tools", limits.max_tools_bytes, limits.max_tools_containers)
    raws = decode(_TOOLS, raw_tools, _TOOL_ALLOWED, root="tools") or []
    if len(raws) > limits.max_tools:
        raise invalid(f"Too many tools: at most {limits.max_tools} are allowed.", "tools", "array_above_max_length")
    tools: list[ToolDef] = []
    for index, raw in enumerate(raws):
        path = f"tools[{index}]"
        kind = decode(_ANY_TOOL, raw, _TOOL_ALLOWED, root=path).type
        if kind not in (None, "custom"):
            whose = "a tool of Anthropic's servers" if kind.startswith(HOSTED_TOOLS) else "not a tool of your own"
            raise unsupported(
                f"Tools of the type '{kind[:64]}' are not supported ({whose}): only those with an 'input_schema' are.",
                f"{path}.type",
                "unsupported_value",
            )
        tool = decode(_TOOL, raw, _TOOL_ALLOWED, root=path)
        for name in _JUDGED_OF_TOOLS:
            value = getattr(tool, name)
            if value is not UNSET:
                judge(f"{path}.{name}", value, TOOL_RULES[name], losses, limits, kind=f"tools[*].{name}")
        parameters = free_object(tool.input_schema, f"{path}.input_schema", limits)
        tools.append(ToolDef(name=tool.name, description=tool.description, parameters=parameters, strict=tool.strict))
    return tuple(tools)
