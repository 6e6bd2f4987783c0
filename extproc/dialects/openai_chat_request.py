"""Chat Completions requests: the body's schema, and its translation into the neutral form.

Source: the types of the official SDK, and what vLLM and SGLang users send beside them through `extra_body`. A field is
carried, or listed as a loss because it has no effect on the answer, or refused by name. `null` means absent, as the
SDK's types have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.json_body import (
    BodyLimits,
    check_depth,
    check_strings,
    check_weight,
    decode,
    descriptions,
    free_object,
    invalid,
    too_long,
    unsupported,
)
from extproc.dialects.openai_chat_fields import FIELDS_OF_OTHERS, RULES, USER_LOSS
from extproc.dialects.openai_chat_messages import Losses, Message, judge, listed, turns_of
from extproc.dialects.openai_formats import format_of
from extproc.dialects.openai_sampling import ALLOWED, SAME_NAME, rare_knobs
from extproc.dialects.openai_tools import tool_choice_of, tools_of
from extproc.ir import ChatRequest, ReasoningRequest, RequestError, Sampling, ToolChoice

_UINT31 = 2**31 - 1
_INT64 = 2**63

_Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
_Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=_UINT31)]
_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]


_Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_EFFORTS = "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and 'max'"


class _StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: Annotated[bool | None, "a boolean"] = None
    include_obfuscation: Annotated[bool | None, "a boolean"] = None
    continuous_usage_stats: Annotated[bool | None, "a boolean"] = None


class _Body(Struct, forbid_unknown_fields=True):
    model: Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]
    messages: Annotated[Annotated[list[Message], Meta(min_length=1)], "a non-empty array of messages"]
    stream: Annotated[bool | None, "a boolean"] = None
    stream_options: Annotated[_StreamOptions | None, "an object"] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, "a number from 0 to 2"] = None
    top_p: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, "a number above 0 and at most 1"] = None
    max_tokens: Annotated[_Tokens | None, "a positive integer"] = None
    max_completion_tokens: Annotated[_Tokens | None, "a positive integer"] = None
    n: Annotated[Annotated[int, Meta(ge=1)] | None, "a positive integer"] = None
    seed: Annotated[Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, "an integer of 64 bits"] = None
    frequency_penalty: Annotated[_Penalty | None, "a number from -2 to 2"] = None
    presence_penalty: Annotated[_Penalty | None, "a number from -2 to 2"] = None
    logprobs: Annotated[bool | None, "a boolean"] = None
    top_logprobs: Annotated[Annotated[int, Meta(ge=0, le=20)] | None, "an integer from 0 to 20"] = None
    user: Annotated[str | None, "a string"] = None
    # Beside OpenAI's own: what vLLM and SGLang take.
    top_k: Annotated[Annotated[int, Meta(ge=-1, le=_UINT31)] | None, "a positive integer, or 0 or -1 for none"] = None
    min_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    repetition_penalty: Annotated[Annotated[float, Meta(gt=0, le=2)] | None, "a number above 0 and at most 2"] = None
    min_tokens: Annotated[Annotated[int, Meta(ge=0, le=_UINT31)] | None, "an integer of at least 0"] = None
    ignore_eos: Annotated[bool | None, "a boolean"] = None
    skip_special_tokens: Annotated[bool | None, "a boolean"] = None
    include_stop_str_in_output: Annotated[bool | None, "a boolean"] = None
    add_generation_prompt: Annotated[bool | None, "a boolean"] = None
    continue_final_message: Annotated[bool | None, "a boolean"] = None
    parallel_tool_calls: Annotated[bool | None, "a boolean"] = None
    reasoning_effort: Annotated[_Effort | None, f"one of {_EFFORTS}"] = None
    include_reasoning: Annotated[bool | None, "a boolean"] = None
    # Below: kept as text until it is known that they matter, so that nothing large is built from them.
    stop: _Anything = UNSET
    stop_token_ids: _Anything = UNSET
    logit_bias: _Anything = UNSET
    chat_template_kwargs: _Anything = UNSET
    metadata: _Anything = UNSET
    store: _Anything = UNSET
    service_tier: _Anything = UNSET
    safety_identifier: _Anything = UNSET
    prompt_cache_key: _Anything = UNSET
    prompt_cache_options: _Anything = UNSET
    prompt_cache_retention: _Anything = UNSET
    verbosity: _Anything = UNSET
    tools: _Anything = UNSET
    tool_choice: _Anything = UNSET
    functions: _Anything = UNSET
    function_call: _Anything = UNSET
    response_format: _Anything = UNSET
    structured_outputs: _Anything = UNSET
    guided_json: _Anything = UNSET
    guided_regex: _Anything = UNSET
    guided_choice: _Anything = UNSET
    guided_grammar: _Anything = UNSET
    json_schema: _Anything = UNSET
    regex: _Anything = UNSET
    ebnf: _Anything = UNSET
    documents: _Anything = UNSET
    modalities: _Anything = UNSET
    audio: _Anything = UNSET
    prediction: _Anything = UNSET
    web_search_options: _Anything = UNSET
    moderation: _Anything = UNSET
    chat_template: _Anything = UNSET


_FIELDS = _Body.__struct_fields__
_FIRST_RARE = _FIELDS.index("stop")
_RARE = _FIELDS[_FIRST_RARE:]
_NOTHING_RARE = (UNSET,) * len(_RARE)

_LONG = frozenset(("tools", "documents"))  # they have limits of their own

_SAME_NAME = (*SAME_NAME, "n")

_ALLOWED: Mapping[str, str] = descriptions(_Body) | ALLOWED
_DOCUMENTS = msgspec.json.Decoder(list[dict[str, Any]])
_BODY = msgspec.json.Decoder(_Body)


def parse_chat(body: bytes, limits: BodyLimits) -> ChatRequest:
    """The request in neutral form. Raises RequestError with the field's path.

    Hot: one decode of the whole body, then one pass over its messages.
    """
    check_strings(body, limits)
    chat = decode(_BODY, body, _ALLOWED, unknown=_unknown_field)
    losses: Losses = {}
    carried: Mapping[str, Raw] = {}
    if (values := msgspec.structs.astuple(chat)[_FIRST_RARE:]) != _NOTHING_RARE:
        carried = _carried(values, limits, losses)
    include_usage = _stream_options(chat, losses)
    turns = turns_of(chat.messages, losses, limits)
    continues = bool(chat.continue_final_message)
    generates = chat.add_generation_prompt
    if continues and generates:
        raise invalid(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.",
            "continue_final_message",
            "invalid_value",
        )
    if continues and turns[-1].role != "assistant":
        raise invalid(
            "'continue_final_message' needs a last message of the role 'assistant'.",
            "continue_final_message",
            "invalid_value",
        )
    if chat.user is not None:
        losses["user"] = USER_LOSS
    return ChatRequest(
        model=chat.model,
        turns=turns,
        sampling=_sampling(chat, carried, limits),
        stream=bool(chat.stream),
        include_usage=include_usage,
        template_kwargs=_template_kwargs(carried, limits),
        add_generation_prompt=not continues if generates is None else generates,
        continue_final_message=continues,
        tools=tools_of(carried["tools"], limits) if "tools" in carried else (),
        tool_choice=tool_choice_of(carried["tool_choice"], limits) if "tool_choice" in carried else ToolChoice(),
        parallel_tool_calls=UNSET if chat.parallel_tool_calls is None else chat.parallel_tool_calls,
        reasoning=_reasoning(chat),
        output=format_of(carried, limits) if carried else None,
        documents=_documents(carried, limits),
        user=chat.user,
        losses=listed(losses),
    )


def _sampling(chat: _Body, carried: Mapping[str, Raw], limits: BodyLimits) -> Sampling:
    knobs: dict[str, Any] = {}
    for name in _SAME_NAME:
        value = getattr(chat, name)
        if value is not None:
            knobs[name] = value
    max_tokens = chat.max_completion_tokens
    if max_tokens is None:
        max_tokens = chat.max_tokens
    elif chat.max_tokens is not None and chat.max_tokens != max_tokens:
        raise invalid(
            "'max_tokens' and 'max_completion_tokens' differ: send only 'max_completion_tokens'.",
            "max_tokens",
            "invalid_value",
        )
    if max_tokens is not None:
        knobs["max_tokens"] = max_tokens
        if chat.min_tokens is not None and chat.min_tokens > max_tokens:
            raise invalid(
                "'min_tokens' must not exceed the maximum number of completion tokens.",
                "min_tokens",
                "min_tokens_exceeds_max",
            )
    if chat.n is not None and chat.n > limits.max_choices:
        raise invalid(
            f"Invalid value for 'n': expected an integer from 1 to {limits.max_choices}.",
            "n",
            "integer_above_max_value",
        )
    knobs |= rare_knobs(carried)
    if chat.include_stop_str_in_output is not None:
        knobs["include_stop"] = chat.include_stop_str_in_output
    if chat.logprobs:
        knobs["top_logprobs"] = chat.top_logprobs or 0
    elif chat.top_logprobs is not None:
        raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "top_logprobs_requires_logprobs")
    return Sampling(**knobs)


_AS_THE_MODEL_DOES = ReasoningRequest()


def _reasoning(chat: _Body) -> ReasoningRequest:
    if chat.reasoning_effort is None and chat.include_reasoning is None:
        return _AS_THE_MODEL_DOES
    return ReasoningRequest(
        effort=UNSET if chat.reasoning_effort is None else chat.reasoning_effort,
        visibility="omitted" if chat.include_reasoning is False else UNSET,
    )


def _documents(carried: Mapping[str, Raw], limits: BodyLimits) -> tuple[dict[str, Any], ...]:
    if "documents" not in carried:
        return ()
    raw = carried["documents"]
    check_weight(raw, "documents", limits.max_tools_bytes, limits.max_tools_containers)
    documents = decode(
        _DOCUMENTS, raw, {"documents": "an array of objects", "documents[]": "an object"}, root="documents"
    )
    for index, document in enumerate(documents):
        check_depth(document, f"documents[{index}]", limits)
    return tuple(documents)


def _stream_options(chat: _Body, losses: Losses) -> bool:
    options = chat.stream_options
    if options is None:
        return False
    if not chat.stream:
        raise invalid("'stream_options' needs 'stream' to be true.", "stream_options", "stream_options_requires_stream")
    if options.include_obfuscation:
        losses["stream_options.include_obfuscation"] = "chunks are not padded"
    if options.continuous_usage_stats:
        losses["stream_options.continuous_usage_stats"] = "usage comes once, in the last chunk"
    return bool(options.include_usage)


def _template_kwargs(carried: Mapping[str, Raw], limits: BodyLimits) -> dict[str, Any]:
    if "chat_template_kwargs" not in carried:
        return {}
    kwargs = free_object(carried["chat_template_kwargs"], "chat_template_kwargs", limits)
    if "chat_template" in kwargs:
        raise unsupported(RULES["chat_template"].refusal or "", "chat_template_kwargs.chat_template")
    return kwargs


def _carried(values: Sequence[Raw | UnsetType], limits: BodyLimits, losses: Losses) -> dict[str, Raw]:
    """Of the rare fields' values those that go on to the engine or the template; the others are judged."""
    carried: dict[str, Raw] = {}
    for name, raw in zip(_RARE, values, strict=True):
        if raw is UNSET:
            continue
        view = memoryview(raw)
        if view.nbytes == 4 and bytes(view) == b"null":
            continue
        if (rule := RULES.get(name)) is not None:
            judge(name, raw, rule, losses, limits)
        elif view.nbytes > limits.max_option_bytes and name not in _LONG:
            raise too_long(name, limits.max_option_bytes)
        else:
            carried[name] = raw
    return carried


def _unknown_field(name: str, path: str) -> RequestError | None:
    """Fields of engines that this gateway has not: their users read that, not that they mistyped."""
    if path == name and name in FIELDS_OF_OTHERS:
        return unsupported(f"Unsupported parameter: '{name}' is not supported.", name)
    return None
