"""Responses requests: the body's schema, and its translation into the neutral form.

Source: the types of the official SDK, and the sampling that vLLM and SGLang take beside them. Nothing is stored, so
every request brings the whole conversation. Counting tokens takes the same body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, judge
from extproc.dialects.json_body import (
    BodyLimits,
    check_strings,
    check_weight,
    decode,
    descriptions,
    free_object,
    invalid,
)
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_responses_answer import Own
from extproc.dialects.openai_responses_fields import (
    BODY_RULES,
    ENCRYPTED,
    INCLUDABLE,
    LOGPROBS,
    REASONING_RULES,
    SUMMARY_LOSS,
    TEXT_RULES,
    USER_LOSS,
)
from extproc.dialects.openai_responses_items import InputItem, ItemReader, unsupported_item
from extproc.dialects.openai_responses_tools import tools_of
from extproc.dialects.openai_tools import tool_choice_of
from extproc.ir import (
    ChatRequest,
    OutputFormat,
    ReasoningRequest,
    RequestError,
    Sampling,
    Text,
    ToolChoice,
    Turn,
)

_UINT31 = 2**31 - 1
_INT64 = 2**63

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
_Flag: TypeAlias = Annotated[bool | None, "a boolean"]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
_Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Summary: TypeAlias = Literal["auto", "concise", "detailed"]


class _StreamOptions(Struct, forbid_unknown_fields=True):
    include_obfuscation: _Flag = None


class _Format(Struct, forbid_unknown_fields=True):
    type: Annotated[Literal["text", "json_object", "json_schema"], "one of 'text', 'json_object' and 'json_schema'"]
    name: Annotated[str | None, "a string"] = None
    description: Annotated[str | None, "a string"] = None
    schema: _Anything = UNSET
    strict: _Flag = None


class _Text(Struct, forbid_unknown_fields=True):
    format: Annotated[_Format | None, "an object"] = None
    verbosity: _Anything = UNSET


class _Reasoning(Struct, forbid_unknown_fields=True):
    effort: Annotated[_Effort | None, "one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and 'max'"] = None
    summary: Annotated[_Summary | None, "one of 'auto', 'concise' and 'detailed'"] = None
    generate_summary: Annotated[_Summary | None, "one of 'auto', 'concise' and 'detailed'"] = None
    context: _Anything = UNSET
    mode: _Anything = UNSET


class _Body(Struct, forbid_unknown_fields=True):
    model: Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]
    input: Annotated[str | list[InputItem] | None, "a string or an array of items"] = None
    instructions: Annotated[str | None, "a string"] = None
    stream: _Flag = None
    stream_options: Annotated[_StreamOptions | None, "an object"] = None
    max_output_tokens: Annotated[Annotated[int, Meta(ge=1, le=_UINT31)] | None, "a positive integer"] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, "a number from 0 to 2"] = None
    top_p: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, "a number above 0 and at most 1"] = None
    top_logprobs: Annotated[Annotated[int, Meta(ge=0, le=20)] | None, "an integer from 0 to 20"] = None
    parallel_tool_calls: _Flag = None
    include: Annotated[list[str] | None, "an array of strings"] = None
    previous_response_id: Annotated[str | None, "a string"] = None
    user: Annotated[str | None, "a string"] = None
    # Beside OpenAI's own: what vLLM and SGLang take.
    top_k: Annotated[Annotated[int, Meta(ge=-1, le=_UINT31)] | None, "a positive integer, or 0 or -1 for none"] = None
    min_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    seed: Annotated[Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, "an integer of 64 bits"] = None
    frequency_penalty: Annotated[_Penalty | None, "a number from -2 to 2"] = None
    presence_penalty: Annotated[_Penalty | None, "a number from -2 to 2"] = None
    repetition_penalty: Annotated[Annotated[float, Meta(gt=0, le=2)] | None, "a number above 0 and at most 2"] = None
    stop: Annotated[
        _StopString | Annotated[list[_StopString], Meta(max_length=64)] | None,
        "a string or an array of up to 64 strings, each of 1 to 500 characters",
    ] = None
    # Below: kept as text, for the answer repeats it.
    tools: _Anything = UNSET
    tool_choice: _Anything = UNSET
    text: _Anything = UNSET
    reasoning: _Anything = UNSET
    metadata: _Anything = UNSET
    conversation: _Anything = UNSET
    # Below: what no engine gets, kept as text until it is judged.
    store: _Anything = UNSET
    service_tier: _Anything = UNSET
    safety_identifier: _Anything = UNSET
    prompt_cache_key: _Anything = UNSET
    prompt_cache_options: _Anything = UNSET
    prompt_cache_retention: _Anything = UNSET
    context_management: _Anything = UNSET
    truncation: _Anything = UNSET
    max_tool_calls: _Anything = UNSET
    personality: _Anything = UNSET
    background: _Anything = UNSET
    background_options: _Anything = UNSET
    prompt: _Anything = UNSET
    moderation: _Anything = UNSET
    access_programs: _Anything = UNSET
    image: _Anything = UNSET


class _Types(Struct):
    input: list[dict[str, Any]]


_RARE = tuple(BODY_RULES)
_ALLOWED: Mapping[str, str] = {
    "text": "an object",
    "reasoning": "an object",
    "metadata": "an object",
    **descriptions(_Body),
    **descriptions(_Text, "text."),
    **descriptions(_Reasoning, "reasoning."),
}
_BODY = msgspec.json.Decoder(_Body)
_TEXT: msgspec.json.Decoder[_Text | None] = msgspec.json.Decoder(_Text | None)
_REASONING: msgspec.json.Decoder[_Reasoning | None] = msgspec.json.Decoder(_Reasoning | None)
_METADATA: msgspec.json.Decoder[dict[str, str] | None] = msgspec.json.Decoder(dict[str, str] | None)
_TYPES = msgspec.json.Decoder(_Types)
_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_CARRIED_ITEMS = frozenset(
    ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
)
_PLAIN_TEXT = Raw(b'{"format":{"type":"text"},"verbosity":"medium"}')
_PLAIN_REASONING = Raw(b'{"effort":null,"summary":null}')
_NO_TOOLS = Raw(b"[]")
_AUTO = Raw(b'"auto"')
_NO_METADATA = Raw(b"{}")


def parse_responses(body: bytes, limits: BodyLimits, *, counting: bool = False) -> ChatRequest:
    """The request in neutral form. Raises RequestError with the field's path.

    With `counting` nothing is asked for but the prompt. Hot: one decode of the body, then one pass over its items.
    """
    check_strings(body, limits)
    try:
        asked = decode(_BODY, body, _ALLOWED)
    except RequestError as error:
        raise _about_items(body) or error from None
    _refuse_state(asked)
    losses: Losses = {}
    for name in _RARE:
        raw = getattr(asked, name)
        if raw is not UNSET:
            judge(name, raw, BODY_RULES[name], losses, limits)
    if asked.stream_options is not None and asked.stream_options.include_obfuscation:
        losses["stream_options.include_obfuscation"] = "chunks are not padded"
    if asked.user is not None:
        losses["user"] = USER_LOSS
    turns = _turns(asked, losses, limits)
    include = _include(asked)
    tools, choice = _given(asked.tools), _given(asked.tool_choice)
    return ChatRequest(
        model=asked.model,
        turns=turns,
        sampling=_sampling(asked, logprobs=LOGPROBS in include),
        stream=bool(asked.stream) and not counting,
        tools=() if tools is None else tools_of(tools, losses, limits),
        tool_choice=ToolChoice() if choice is None else tool_choice_of(choice, limits),
        parallel_tool_calls=UNSET if asked.parallel_tool_calls is None else asked.parallel_tool_calls,
        reasoning=_reasoning(asked, losses, limits),
        output=_output(asked, losses, limits),
        user=asked.user,
        losses=listed(losses),
        own=Own(_echo(asked, limits), ENCRYPTED in include),
    )


def _about_items(body: bytes) -> RequestError | None:
    """A better error for bodies with items of other types: those have fields that no item here has."""
    try:
        items = _TYPES.decode(body).input
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    for index, item in enumerate(items):
        kind = item.get("type")
        if isinstance(kind, str) and kind not in _CARRIED_ITEMS and kind != "item_reference":
            return unsupported_item(kind, f"input[{index}]")
    return None


def _refuse_state(asked: _Body) -> None:
    """Answers are not kept, so nothing can be continued by its id."""
    if asked.previous_response_id is not None:
        raise invalid(
            f"Previous response with id {asked.previous_response_id[:64]!r} not found: responses are not stored. Send "
            "the whole conversation as 'input'.",
            "previous_response_id",
            "previous_response_not_found",
        )
    if _given(asked.conversation) is not None:
        raise invalid(
            "Conversation not found: conversations are not stored. Send the whole conversation as 'input'.",
            "conversation",
            "conversation_not_found",
        )


def _turns(asked: _Body, losses: Losses, limits: BodyLimits) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    if asked.instructions:
        turns.append(Turn("system", (Text(asked.instructions),)))
    items = asked.input
    if items is None:
        raise invalid("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    if isinstance(items, str):
        turns.append(Turn("user", (Text(items),)))
    elif not items:
        raise invalid(
            "Invalid value for 'input': expected a string or a non-empty array of items.", "input", "empty_array"
        )
    else:
        turns += ItemReader(losses, limits).turns(items)
    return tuple(turns)


def _include(asked: _Body) -> frozenset[str]:
    include = asked.include or []
    for index, name in enumerate(include):
        if name not in INCLUDABLE:
            place = f"include[{index}]"
            known = ", ".join(f"'{one}'" for one in sorted(INCLUDABLE))
            raise invalid(f"Invalid value for '{place}': expected one of {known}.", place, "invalid_value")
    return frozenset(include)


def _sampling(asked: _Body, *, logprobs: bool) -> Sampling:
    knobs: dict[str, Any] = {}
    for name in _SAME_NAME:
        value = getattr(asked, name)
        if value is not None:
            knobs[name] = value
    if asked.max_output_tokens is not None:
        knobs["max_tokens"] = asked.max_output_tokens
    if asked.stop:
        knobs["stop"] = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop)
    if logprobs or asked.top_logprobs:
        knobs["top_logprobs"] = asked.top_logprobs or 0
    return Sampling(**knobs)


def _reasoning(asked: _Body, losses: Losses, limits: BodyLimits) -> ReasoningRequest:
    if asked.reasoning is UNSET:
        return ReasoningRequest()
    wanted = decode(_REASONING, asked.reasoning, _ALLOWED, root="reasoning")
    if wanted is None:
        return ReasoningRequest()
    for name, rule in REASONING_RULES.items():
        raw = getattr(wanted, name)
        if raw is not UNSET:
            judge(f"reasoning.{name}", raw, rule, losses, limits)
    knobs: dict[str, Any] = {}
    if wanted.effort is not None:
        knobs["effort"] = wanted.effort
    if (wanted.summary or wanted.generate_summary) is not None:
        knobs["visibility"] = "summary"
        losses["reasoning.summary"] = SUMMARY_LOSS
    return ReasoningRequest(**knobs)


def _output(asked: _Body, losses: Losses, limits: BodyLimits) -> OutputFormat | None:
    text = None if asked.text is UNSET else decode(_TEXT, asked.text, _ALLOWED, root="text")
    if text is None:
        return None
    if text.verbosity is not UNSET:
        judge("text.verbosity", text.verbosity, TEXT_RULES["verbosity"], losses, limits)
    form = text.format
    path = "text.format"
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return OutputFormat(kind="json_object", path=path)
    schema = _given(form.schema)
    if schema is None:
        raise invalid(f"Missing required parameter: '{path}.schema'.", f"{path}.schema", "missing_required_parameter")
    return OutputFormat(
        kind="json_schema",
        schema=free_object(schema, f"{path}.schema", limits),
        name=form.name,
        description=form.description,
        strict=form.strict,
        path=path,
    )


def _echo(asked: _Body, limits: BodyLimits) -> dict[str, Any]:
    """What every response object repeats of its request, and what holds where that asked for nothing or for more."""
    if asked.metadata is not UNSET:
        check_weight(asked.metadata, "metadata", limits.max_option_bytes, limits.max_option_containers)
        decode(_METADATA, asked.metadata, {"metadata": "an object of strings"}, root="metadata")
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "metadata": _kept(asked.metadata, _NO_METADATA),
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": _kept(asked.reasoning, _PLAIN_REASONING),
        "background": False,
        "service_tier": "default",
        "store": False,
        "temperature": asked.temperature,
        "text": _kept(asked.text, _PLAIN_TEXT),
        "tool_choice": _kept(asked.tool_choice, _AUTO),
        "tools": _kept(asked.tools, _NO_TOOLS),
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": asked.top_p,
        "truncation": "disabled",
        "user": asked.user,
    }


def _kept(raw: Raw | UnsetType, otherwise: Raw) -> Raw:
    """A copy, for it is a view of the whole body."""
    given = _given(raw)
    return otherwise if given is None else given.copy()


def _given(raw: Raw | UnsetType) -> Raw | None:
    """None for a field that is absent or null."""
    return None if raw is UNSET or bytes(raw) == b"null" else raw
