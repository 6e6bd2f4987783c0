"""Conversations of the neutral form to bodies of OpenAI's Chat Completions, for engines that speak it over HTTP.

The fields beside OpenAI's own are those that vLLM and SGLang share. What not all such engines have is refused or listed
as a loss, since an engine that does not know a field ignores it in silence.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from extproc.engines.openai_messages import messages_of
from extproc.ir import ChatRequest, ErrorInfo, ErrorKind, Loss, OutputFormat, RequestError, Sampling
from extproc.tokens.messages import offered_tools, tools_of

CHAT_PATH = "/v1/chat/completions"

_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
)
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class ChatBody(Struct, frozen=True):
    """A request for an engine, and what of the client's does not reach it."""

    body: bytes
    prompt: bytes  # the JSON text of what the prompt is made from: equal beginnings are equal prompts
    losses: tuple[Loss, ...]


def chat_body(chat: ChatRequest, model: str) -> ChatBody:
    """`model`: as the engine calls it. Raises RequestError for what cannot be carried."""
    losses = list(chat.losses)
    messages = msgspec.json.encode(messages_of(chat.turns))
    fields: dict[str, Any] = {"model": model, "messages": msgspec.Raw(messages)}
    prompt = messages
    offered = tools_of(offered_tools(chat))
    if offered:
        tools = msgspec.json.encode(offered)
        fields["tools"] = msgspec.Raw(tools)
        fields["tool_choice"] = _tool_choice(chat)
        prompt = tools + messages
        if chat.parallel_tool_calls is not UNSET:
            fields["parallel_tool_calls"] = chat.parallel_tool_calls
    fields |= _sampling(chat.sampling)
    if chat.output is not None:
        fields["response_format"] = _format(chat.output)
    if chat.stream:
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True}
    kwargs = dict(chat.template_kwargs)
    reasoning = chat.reasoning
    if reasoning.wanted is not None:
        kwargs = {"enable_thinking": reasoning.wanted, "thinking": reasoning.wanted} | kwargs
    if reasoning.effort is not UNSET and reasoning.effort in _EFFORTS:
        fields["reasoning_effort"] = _EFFORTS[reasoning.effort]
    if reasoning.budget_tokens is not UNSET and reasoning.budget_tokens > 0:
        losses.append(Loss("reasoning.budget_tokens", "engines over HTTP have no common field for it"))
    if kwargs:
        fields["chat_template_kwargs"] = kwargs
    if chat.documents:
        fields["documents"] = chat.documents
    if chat.continue_final_message:
        fields["continue_final_message"] = True
    if not chat.add_generation_prompt:
        fields["add_generation_prompt"] = False
    if chat.user is not None:
        fields["user"] = chat.user
    return ChatBody(msgspec.json.encode(fields), prompt, tuple(losses))


def _tool_choice(chat: ChatRequest) -> Any:
    choice = chat.tool_choice
    if choice.mode == "named":
        return {"type": "function", "function": {"name": choice.names[0]}}
    return choice.mode


def _sampling(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in _SAME_NAME:
        value = getattr(sampling, name)
        if value is not UNSET:
            fields[name] = value
    if fields.get("top_k") == 0:
        fields["top_k"] = -1  # both mean off, and SGLang takes only this
    if sampling.n != 1:
        fields["n"] = sampling.n
    if sampling.stop:
        fields["stop"] = sampling.stop
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = sampling.stop_token_ids
    if sampling.include_stop:
        fields["include_stop_str_in_output"] = fields["no_stop_trim"] = True
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if not sampling.skip_special_tokens:
        fields["skip_special_tokens"] = False
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias.items()}
    if sampling.top_logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = sampling.top_logprobs
    return fields


def _format(output: OutputFormat) -> dict[str, Any]:
    if output.kind == "json_object":
        return {"type": "json_object"}
    if output.kind != "json_schema":
        raise RequestError(
            ErrorInfo(
                kind=ErrorKind.UNSUPPORTED,
                message=f"Output bound by a {output.kind} is not supported by this model.",
                param=output.path,
                code="unsupported_value",
            )
        )
    schema: dict[str, Any] = {"name": output.name or "answer", "schema": output.schema}
    if output.description is not None:
        schema["description"] = output.description
    if output.strict is not None:
        schema["strict"] = output.strict
    return {"type": "json_schema", "json_schema": schema}
