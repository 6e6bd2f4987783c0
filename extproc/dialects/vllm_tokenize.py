"""vLLM's `POST /tokenize` and `POST /detokenize`, which this gateway answers itself.

Source: vLLM 0.32, `entrypoints/serve/tokenize/protocol.py`. `/tokenize` takes a text (`prompt`) or a conversation
(`messages`); what of chat completions does not change the prompt is not a field here. As with chat completions,
`chat_template` is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.base import Dialect, Rendered, Row
from extproc.dialects.json_body import (
    BodyLimits,
    check_strings,
    decode,
    descriptions,
    free_object,
    invalid,
    unsupported,
)
from extproc.dialects.openai_chat_fields import RULES
from extproc.dialects.openai_chat_messages import Losses, Message, judge, turns_of
from extproc.dialects.openai_errors import JSON_TYPE, error_answer
from extproc.dialects.openai_tools import tools_of
from extproc.ir import ChatRequest, Operation, RequestError

__all__ = [
    "DetokenizeRequest",
    "TokenizeRequest",
    "parse_detokenize",
    "parse_tokenize",
    "render_text",
    "render_tokens",
    "vllm_tokenize",
]

_MAX_ID = 2**63 - 1
_MODEL_CHARS = 512

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Model: TypeAlias = Annotated[str, Meta(min_length=1, max_length=_MODEL_CHARS)]
_TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_ID)]


class TokenizeRequest(Struct, frozen=True):
    """A text or a conversation, exactly one of both."""

    model: str | None  # None: the only one there is
    prompt: str | None
    conversation: ChatRequest | None
    add_special_tokens: bool
    wants_names: bool


class DetokenizeRequest(Struct, frozen=True):
    """Ids, of which some may be unknown to the model."""

    model: str | None
    ids: list[int]


class _Tokenize(Struct, forbid_unknown_fields=True):
    model: Annotated[_Model | None, "a model's name"] = None
    prompt: Annotated[str | None, "a string"] = None
    messages: Annotated[Annotated[list[Message], Meta(min_length=1)] | None, "a non-empty array of messages"] = None
    add_special_tokens: Annotated[bool | None, "a boolean"] = None
    return_token_strs: Annotated[bool | None, "a boolean"] = None
    add_generation_prompt: Annotated[bool | None, "a boolean"] = None
    continue_final_message: Annotated[bool | None, "a boolean"] = None
    chat_template_kwargs: _Anything = UNSET
    chat_template: _Anything = UNSET
    media_io_kwargs: _Anything = UNSET
    mm_processor_kwargs: _Anything = UNSET
    tools: _Anything = UNSET


class _Detokenize(Struct, forbid_unknown_fields=True):
    tokens: Annotated[list[_TokenId], "an array of token ids"]
    model: Annotated[_Model | None, "a model's name"] = None


_TOKENIZE = msgspec.json.Decoder(_Tokenize)
_DETOKENIZE = msgspec.json.Decoder(_Detokenize)
_TOKENIZE_ALLOWED = descriptions(_Tokenize)
_DETOKENIZE_ALLOWED = descriptions(_Detokenize)
_OF_CHAT = ("add_generation_prompt", "continue_final_message")


def vllm_tokenize() -> Dialect:
    """The dialect."""
    return Dialect(
        name="vllm_tokenize",
        rows=(
            Row("POST", "/tokenize", Operation.TOKENIZE),
            Row("POST", "/v1/tokenize", Operation.TOKENIZE),
            Row("POST", "/detokenize", Operation.DETOKENIZE),
            Row("POST", "/v1/detokenize", Operation.DETOKENIZE),
        ),
        error=error_answer,
    )


def parse_tokenize(body: bytes, limits: BodyLimits) -> TokenizeRequest:
    """Raises RequestError with the field's path."""
    check_strings(body, limits)
    request = decode(_TOKENIZE, body, _TOKENIZE_ALLOWED)
    if request.messages is None:
        if request.prompt is None:
            raise invalid("Missing required parameter: 'prompt' or 'messages'.", "prompt", "missing_required_parameter")
        for name in _OF_CHAT:
            if getattr(request, name) is not None:
                raise invalid(f"'{name}' needs 'messages'.", name, "invalid_value")
        conversation = None
    elif request.prompt is not None:
        raise invalid("'prompt' and 'messages' exclude each other.", "prompt", "invalid_value")
    else:
        conversation = _conversation(request, request.messages, limits)
    add_special_tokens = request.add_special_tokens
    return TokenizeRequest(
        request.model,
        request.prompt,
        conversation,
        # The template writes the special tokens of a conversation itself.
        conversation is None if add_special_tokens is None else add_special_tokens,
        bool(request.return_token_strs),
    )


def parse_detokenize(body: bytes, limits: BodyLimits) -> DetokenizeRequest:
    """Raises RequestError with the field's path."""
    check_strings(body, limits)
    most = limits.max_token_ids
    # Commas stand between ids and nowhere else but in the model's name, so they tell before anything is built.
    if body.count(b",") > most + _MODEL_CHARS + 1:
        raise _too_many_ids(most)
    request = decode(_DETOKENIZE, body, _DETOKENIZE_ALLOWED)
    if len(request.tokens) > most:
        raise _too_many_ids(most)
    return DetokenizeRequest(request.model, request.tokens)


def _too_many_ids(most: int) -> RequestError:
    return invalid(f"Too many token ids: at most {most} are allowed.", "tokens", "array_above_max_length")


def _conversation(request: _Tokenize, messages: list[Message], limits: BodyLimits) -> ChatRequest:
    losses: Losses = {}
    if request.chat_template is not UNSET:
        judge("chat_template", request.chat_template, RULES["chat_template"], losses, limits)
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        raw = getattr(request, name)
        if raw is not UNSET and bytes(raw) not in (b"null", b"{}"):
            raise unsupported(f"Unsupported parameter: '{name}' is not supported.", name)
    turns = turns_of(messages, losses, limits)
    continues = bool(request.continue_final_message)
    generates = request.add_generation_prompt
    if continues and generates:
        raise invalid(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.",
            "continue_final_message",
            "invalid_value",
        )
    return ChatRequest(
        model=request.model or "",
        turns=turns,
        tools=() if request.tools is UNSET or bytes(request.tools) == b"null" else tools_of(request.tools, limits),
        template_kwargs=_template_kwargs(request.chat_template_kwargs, limits),
        add_generation_prompt=not continues if generates is None else generates,
        continue_final_message=continues,
    )


def _template_kwargs(raw: Raw | UnsetType, limits: BodyLimits) -> dict[str, Any]:
    if raw is UNSET or bytes(raw) == b"null":
        return {}
    return free_object(raw, "chat_template_kwargs", limits)


def render_tokens(ids: Sequence[int], names: Sequence[str | None] | None, context_tokens: int | None) -> Rendered:
    """The answer to `/tokenize`. `context_tokens`: null where nothing tells it."""
    return _answer(
        {"count": len(ids), "max_model_len": context_tokens, "tokens": list(ids), "token_strs": names},
    )


def render_text(text: str) -> Rendered:
    """The answer to `/detokenize`."""
    return _answer({"prompt": text})


def _answer(value: dict[str, object]) -> Rendered:
    return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=msgspec.json.encode(value))
