"""Requests to `/api/chat` and `/api/generate`: the bodies' schemas, and their translation into the neutral form.

Source: Ollama's types (`api/types.go`) and what its clients send. A prompt of `/api/generate` is a conversation of one
message. `stream` is true where it is absent.
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
from extproc.dialects.ollama_fields import BODY_RULES, NO_OPTION, OPTION_REASONS
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_tools import tools_of
from extproc.dialects.tool_arguments import text_of
from extproc.dialects.waiting_calls import WaitingCalls
from extproc.ir import (
    ChatRequest,
    Media,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningRequest,
    Sampling,
    Text,
    ToolCall,
    ToolDef,
    ToolResult,
    Turn,
)

_UINT31 = 2**31 - 1
_INT64 = 2**63

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Optional: TypeAlias = Annotated[str | None, "a string"]
_Model: TypeAlias = Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
_Stops: TypeAlias = Annotated[list[_StopString], Meta(max_length=64)]
_Penalty: TypeAlias = Annotated[Annotated[float, Meta(ge=-2, le=2)] | None, "a number from -2 to 2"]
_Think: TypeAlias = Annotated[
    bool | Literal["low", "medium", "high", "max"] | None, "a boolean, 'low', 'medium', 'high' or 'max'"
]


class Own(Struct, frozen=True):
    """What the answer needs of the request."""

    chat: bool  # it was `/api/chat`


class _Function(Struct):
    name: Annotated[str, "a function's name"]
    arguments: Annotated[Raw | UnsetType, "an object"] = UNSET


class _Call(Struct):
    function: Annotated[_Function, "an object with name and arguments"]
    id: _Optional = None


class _Message(Struct, forbid_unknown_fields=True, gc=False):
    role: Annotated[Literal["system", "user", "assistant", "tool"], "one of 'system', 'user', 'assistant' and 'tool'"]
    content: _Optional = None
    thinking: _Optional = None
    images: Annotated[list[str] | None, "an array of base64 texts"] = None
    tool_calls: Annotated[list[_Call] | None, "an array of calls"] = None
    tool_name: _Optional = None
    name: _Optional = None  # the tool's, as earlier clients have it
    tool_call_id: _Optional = None


class _Options(Struct):
    num_predict: Annotated[Annotated[int, Meta(ge=-2, le=_UINT31)] | None, "an integer of at least -2"] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, "a number from 0 to 2"] = None
    top_k: Annotated[Annotated[int, Meta(ge=-1, le=_UINT31)] | None, "an integer of at least 0"] = None
    top_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    min_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    seed: Annotated[Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, "an integer of 64 bits"] = None
    stop: Annotated[_StopString | _Stops | None, "an array of up to 64 strings, each of 1 to 500 characters"] = None
    repeat_penalty: Annotated[Annotated[float, Meta(gt=0, le=2)] | None, "a number above 0 and at most 2"] = None
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None


class _Common(Struct, forbid_unknown_fields=True, kw_only=True):
    model: _Model
    stream: Annotated[bool | None, "a boolean"] = None
    think: _Think = None
    format: Annotated[Raw | UnsetType, "'json' or a JSON Schema"] = UNSET
    options: Annotated[Raw | UnsetType, "an object"] = UNSET
    logprobs: Annotated[bool | None, "a boolean"] = None
    top_logprobs: Annotated[Annotated[int, Meta(ge=0, le=20)] | None, "an integer from 0 to 20"] = None
    # Below: what no engine gets, kept as text until it is judged.
    keep_alive: _Anything = UNSET
    truncate: _Anything = UNSET
    shift: _Anything = UNSET


class _Chat(_Common, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[Annotated[list[_Message], Meta(min_length=1)], "a non-empty array of messages"]
    tools: Annotated[Raw | UnsetType, "an array of tools"] = UNSET


class _Generate(_Common, forbid_unknown_fields=True, kw_only=True):
    prompt: Annotated[Annotated[str, Meta(min_length=1)], "a text that is not empty"]
    system: _Optional = None
    images: Annotated[list[str] | None, "an array of base64 texts"] = None
    raw: _Anything = UNSET
    suffix: _Anything = UNSET
    template: _Anything = UNSET
    context: _Anything = UNSET


_CHAT = msgspec.json.Decoder(_Chat)
_GENERATE = msgspec.json.Decoder(_Generate)
_OPTIONS = msgspec.json.Decoder(_Options)
_NAMES = msgspec.json.Decoder(dict[str, Raw])
_FORMAT: msgspec.json.Decoder[str | dict[str, Any] | None] = msgspec.json.Decoder(str | dict[str, Any] | None)
_CHAT_ALLOWED: Mapping[str, str] = descriptions(_Chat)
_GENERATE_ALLOWED: Mapping[str, str] = descriptions(_Generate)
_OPTIONS_ALLOWED: Mapping[str, str] = {"options": "an object", **descriptions(_Options, "options.")}
_FORMAT_ALLOWED = {"format": "'json' or a JSON Schema"}
_OWN_OPTIONS = frozenset(_Options.__struct_fields__)
_SAME_NAME = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty")
_COMMON_RULES = ("keep_alive", "truncate", "shift")
_GENERATE_RULES = ("raw", "suffix", "template", "context")


def parse_chat(body: bytes, limits: BodyLimits) -> ChatRequest:
    """A conversation. Raises RequestError with the field's path. Hot: one decode, then one pass over the messages."""
    check_strings(body, limits)
    asked = decode(_CHAT, body, _CHAT_ALLOWED)
    if len(asked.messages) > limits.max_messages:
        raise invalid(
            f"Too many messages: at most {limits.max_messages} are allowed.", "messages", "array_above_max_length"
        )
    losses: Losses = {}
    waiting = WaitingCalls()
    turns = tuple([_turn(message, index, waiting) for index, message in enumerate(asked.messages)])
    tools: tuple[ToolDef, ...] = ()
    if asked.tools is not UNSET and bytes(asked.tools) != b"null":
        tools = tools_of(asked.tools, limits)
    return _request(asked, turns, tools, losses, limits)


def parse_generate(body: bytes, limits: BodyLimits) -> ChatRequest:
    """A prompt, and with it a system prompt. Raises RequestError with the field's path."""
    check_strings(body, limits)
    asked = decode(_GENERATE, body, _GENERATE_ALLOWED)
    losses: Losses = {}
    for name in _GENERATE_RULES:
        raw = getattr(asked, name)
        if raw is not UNSET:
            judge(name, raw, BODY_RULES[name], losses, limits)
    turns = [Turn("system", (Text(asked.system),))] if asked.system else []
    turns.append(Turn("user", (Text(asked.prompt), *_images(asked.images, "images"))))
    return _request(asked, tuple(turns), (), losses, limits)


def _request(
    asked: _Common, turns: tuple[Turn, ...], tools: tuple[ToolDef, ...], losses: Losses, limits: BodyLimits
) -> ChatRequest:
    for name in _COMMON_RULES:
        raw = getattr(asked, name)
        if raw is not UNSET:
            judge(name, raw, BODY_RULES[name], losses, limits)
    continues = turns[-1].role == "assistant"
    if continues and type(turns[-1].parts[-1]) is not Text:
        raise invalid("The last message must not end with a call: nothing can be continued there.", "messages")
    return ChatRequest(
        model=asked.model,
        turns=turns,
        sampling=_sampling(asked, losses, limits),
        stream=asked.stream is not False,
        tools=tools,
        reasoning=_reasoning(asked.think),
        output=_output(asked.format, limits),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        losses=listed(losses),
        own=Own(isinstance(asked, _Chat)),
    )


def _turn(message: _Message, index: int, waiting: WaitingCalls) -> Turn:
    """`waiting`: calls before it whose results are to come."""
    content = message.content or ""
    if message.role == "tool":
        return Turn("tool", (_result(message, content, index, waiting),))
    parts: list[Part] = []
    if message.thinking and message.role == "assistant":
        parts.append(Reasoning(message.thinking))
    if content or not (message.tool_calls or message.images):
        parts.append(Text(content))
    if message.images:
        parts += _images(message.images, f"messages[{index}].images")
    if message.tool_calls:
        if message.role != "assistant":
            place = f"messages[{index}].tool_calls"
            raise invalid(f"'{place}' is allowed in messages of the role 'assistant' only.", place, "invalid_value")
        for number, call in enumerate(message.tool_calls):
            parts.append(_call(call, f"messages[{index}].tool_calls[{number}]", f"call_{index}_{number}", waiting))
    return Turn(message.role, tuple(parts))


def _call(call: _Call, path: str, own_id: str, waiting: WaitingCalls) -> ToolCall:
    function = call.function
    raw = b"{}" if function.arguments is UNSET else bytes(function.arguments)
    arguments = "{}" if raw == b"null" else text_of(raw, f"{path}.function.arguments")
    call_id = call.id or own_id
    waiting.add(call_id, function.name)
    return ToolCall(call_id=call_id, name=function.name, arguments=arguments)


def _result(message: _Message, content: str, index: int, waiting: WaitingCalls) -> ToolResult:
    """Results have no ids in older clients, some not even a name: then they answer the calls in order."""
    name = message.tool_name or message.name
    answered = waiting.take(message.tool_call_id, name)
    if answered is None:
        raise invalid(
            f"'messages[{index}]' is the result of a tool that has not been called before it.",
            f"messages[{index}]",
            "invalid_value",
        )
    call_id, called = answered
    return ToolResult(call_id=call_id, parts=(Text(content),), name=name or called)


def _images(images: list[str] | None, path: str) -> list[Media]:
    return [Media(modality="image", data=data, path=f"{path}[{index}]") for index, data in enumerate(images or ())]


def _sampling(asked: _Common, losses: Losses, limits: BodyLimits) -> Sampling:
    knobs: dict[str, Any] = {}
    if asked.options is not UNSET and bytes(asked.options) != b"null":
        check_weight(asked.options, "options", limits.max_option_bytes, limits.max_option_containers)
        options = decode(_OPTIONS, asked.options, _OPTIONS_ALLOWED, root="options")
        for name in decode(_NAMES, asked.options, _OPTIONS_ALLOWED, root="options"):
            if name not in _OWN_OPTIONS:
                losses[f"options.{name[:64]}"] = OPTION_REASONS.get(name, NO_OPTION)
        for name in _SAME_NAME:
            value = getattr(options, name)
            if value is not None:
                knobs[name] = value
        if options.repeat_penalty is not None:
            knobs["repetition_penalty"] = options.repeat_penalty
        if options.num_predict is not None and options.num_predict > 0:
            knobs["max_tokens"] = options.num_predict  # below, as many as there is room for
        if options.stop:
            knobs["stop"] = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop)
    if asked.logprobs or asked.top_logprobs:
        knobs["top_logprobs"] = asked.top_logprobs or 0
    return Sampling(**knobs)


def _reasoning(think: bool | str | None) -> ReasoningRequest:
    if think is None:
        return ReasoningRequest()
    if think is False:
        return ReasoningRequest(enabled=False, visibility="omitted")
    if think is True:
        return ReasoningRequest(enabled=True)
    return ReasoningRequest(enabled=True, effort=think)  # type: ignore[arg-type]


def _output(raw: Raw | UnsetType, limits: BodyLimits) -> OutputFormat | None:
    if raw is UNSET:
        return None
    check_weight(raw, "format", limits.max_option_bytes, limits.max_option_containers)
    wanted = decode(_FORMAT, raw, _FORMAT_ALLOWED, root="format")
    if isinstance(wanted, dict):
        return OutputFormat(kind="json_schema", schema=free_object(raw, "format", limits), path="format")
    if wanted == "json":
        return OutputFormat(kind="json_object", path="format")
    if wanted:
        raise invalid("Invalid value for 'format': expected 'json' or a JSON Schema.", "format", "invalid_value")
    return None
