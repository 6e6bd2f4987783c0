"""Completions requests: the body's schema, and its translation into the neutral form.

Source: the types of the official SDK, and what vLLM takes beside them. A field is carried, or listed as a loss because
it has no effect on the answer, or refused by name. `null` means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.field_rules import Losses, Rule, judge
from extproc.dialects.json_body import (
    BodyLimits,
    check_strings,
    decode,
    descriptions,
    invalid,
    too_long,
    unsupported,
)
from extproc.dialects.openai_chat_fields import FIELDS_OF_OTHERS, RULES, USER_LOSS
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_formats import format_of
from extproc.dialects.openai_prompts import ALLOWED_PROMPTS, prompts_of
from extproc.dialects.openai_sampling import ALLOWED, SAME_NAME, rare_knobs
from extproc.ir import RequestError, Sampling, TextRequest

__all__ = ["DEFAULT_MAX_TOKENS", "parse_completion"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's and vLLM's, for this API alone."""

_UINT31 = 2**31 - 1
_INT64 = 2**63

_Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=_UINT31)]
_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]


class _StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: Annotated[bool | None, "a boolean"] = None
    include_obfuscation: Annotated[bool | None, "a boolean"] = None
    continuous_usage_stats: Annotated[bool | None, "a boolean"] = None


class _Body(Struct, forbid_unknown_fields=True):
    model: Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]
    prompt: Annotated[Raw, ALLOWED_PROMPTS]
    stream: Annotated[bool | None, "a boolean"] = None
    stream_options: Annotated[_StreamOptions | None, "an object"] = None
    echo: Annotated[bool | None, "a boolean"] = None
    best_of: Annotated[_Count | None, "a positive integer"] = None
    n: Annotated[_Count | None, "a positive integer"] = None
    logprobs: Annotated[Annotated[int, Meta(ge=0, le=20)] | None, "an integer from 0 to 20"] = None
    max_tokens: Annotated[_Count | None, "a positive integer"] = None
    temperature: Annotated[Annotated[float, Meta(ge=0, le=2)] | None, "a number from 0 to 2"] = None
    top_p: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, "a number above 0 and at most 1"] = None
    seed: Annotated[Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)] | None, "an integer of 64 bits"] = None
    frequency_penalty: Annotated[_Penalty | None, "a number from -2 to 2"] = None
    presence_penalty: Annotated[_Penalty | None, "a number from -2 to 2"] = None
    user: Annotated[str | None, "a string"] = None
    # Beside OpenAI's own: what vLLM takes.
    top_k: Annotated[Annotated[int, Meta(ge=-1, le=_UINT31)] | None, "a positive integer, or 0 or -1 for none"] = None
    min_p: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, "a number from 0 to 1"] = None
    repetition_penalty: Annotated[Annotated[float, Meta(gt=0, le=2)] | None, "a number above 0 and at most 2"] = None
    min_tokens: Annotated[Annotated[int, Meta(ge=0, le=_UINT31)] | None, "an integer of at least 0"] = None
    ignore_eos: Annotated[bool | None, "a boolean"] = None
    skip_special_tokens: Annotated[bool | None, "a boolean"] = None
    include_stop_str_in_output: Annotated[bool | None, "a boolean"] = None
    add_special_tokens: Annotated[bool | None, "a boolean"] = None
    # Below: kept as text until it is known that they matter.
    stop: _Anything = UNSET
    stop_token_ids: _Anything = UNSET
    logit_bias: _Anything = UNSET
    suffix: _Anything = UNSET
    response_format: _Anything = UNSET
    structured_outputs: _Anything = UNSET
    guided_json: _Anything = UNSET
    guided_regex: _Anything = UNSET
    guided_choice: _Anything = UNSET
    guided_grammar: _Anything = UNSET
    json_schema: _Anything = UNSET
    regex: _Anything = UNSET
    ebnf: _Anything = UNSET
    metadata: _Anything = UNSET


_RULES = {
    "suffix": Rule(
        neutral=("",),
        refusal="Unsupported parameter: 'suffix'. The engines' protocol has no place for what follows a gap.",
    ),
    "metadata": RULES["metadata"],
}
_FIELDS = _Body.__struct_fields__
_RARE = _FIELDS[_FIELDS.index("stop") :]

_ALLOWED: Mapping[str, str] = descriptions(_Body) | ALLOWED
_BODY = msgspec.json.Decoder(_Body)


def parse_completion(body: bytes, limits: BodyLimits) -> TextRequest:
    """The request in neutral form. Raises RequestError with the field's path."""
    check_strings(body, limits)
    request = decode(_BODY, body, _ALLOWED, unknown=_unknown_field)
    losses: Losses = {}
    carried = _carried(request, limits, losses)
    prompts = prompts_of(request.prompt, "prompt", limits, most=limits.max_choices)
    n = request.n or 1
    best_of = request.best_of or n
    if best_of < n:
        raise invalid("'best_of' must not be less than 'n'.", "best_of", "invalid_value")
    if best_of > n and request.stream:
        raise invalid("'best_of' above 'n' cannot be streamed.", "best_of", "invalid_value")
    if best_of * len(prompts) > limits.max_choices:
        raise invalid(
            f"Too many choices: 'n' or 'best_of', times the number of prompts, may be up to {limits.max_choices}.",
            "best_of" if request.best_of is not None else "n",
            "integer_above_max_value",
        )
    if request.echo and request.logprobs is not None:
        raise unsupported(
            "'logprobs' with 'echo' is not supported: the log probabilities of the prompt are not known.",
            "logprobs",
            "unsupported_value",
        )
    if request.user is not None:
        losses["user"] = USER_LOSS
    return TextRequest(
        model=request.model,
        prompts=prompts,
        sampling=_sampling(request, carried, n),
        echo=bool(request.echo),
        best_of=best_of if best_of > n else None,
        stream=bool(request.stream),
        include_usage=_stream_options(request, losses),
        add_special_tokens=request.add_special_tokens is not False,
        output=format_of(carried, limits) if carried else None,
        user=request.user,
        losses=listed(losses),
    )


def _sampling(request: _Body, carried: Mapping[str, Raw], n: int) -> Sampling:
    knobs: dict[str, Any] = {"n": n}
    for name in SAME_NAME:
        value = getattr(request, name)
        if value is not None:
            knobs[name] = value
    max_tokens = knobs["max_tokens"] = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if request.min_tokens is not None and request.min_tokens > max_tokens:
        raise invalid(
            "'min_tokens' must not exceed 'max_tokens', which is "
            + (f"{max_tokens}." if request.max_tokens is not None else f"{max_tokens} where it is not set."),
            "min_tokens",
            "min_tokens_exceeds_max",
        )
    knobs |= rare_knobs(carried)
    if request.include_stop_str_in_output is not None:
        knobs["include_stop"] = request.include_stop_str_in_output
    if request.logprobs is not None:
        knobs["top_logprobs"] = request.logprobs
    return Sampling(**knobs)


def _stream_options(request: _Body, losses: Losses) -> bool:
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise invalid("'stream_options' needs 'stream' to be true.", "stream_options", "stream_options_requires_stream")
    if options.include_obfuscation:
        losses["stream_options.include_obfuscation"] = "chunks are not padded"
    if options.continuous_usage_stats:
        losses["stream_options.continuous_usage_stats"] = "usage comes once, in the last chunk"
    return bool(options.include_usage)


def _carried(request: _Body, limits: BodyLimits, losses: Losses) -> dict[str, Raw]:
    carried: dict[str, Raw] = {}
    for name in _RARE:
        raw = getattr(request, name)
        if raw is UNSET or bytes(memoryview(raw)[:4]) == b"null":
            continue
        if (rule := _RULES.get(name)) is not None:
            judge(name, raw, rule, losses, limits)
        elif memoryview(raw).nbytes > limits.max_option_bytes:
            raise too_long(name, limits.max_option_bytes)
        else:
            carried[name] = raw
    return carried


def _unknown_field(name: str, path: str) -> RequestError | None:
    if path == name and (name in FIELDS_OF_OTHERS or name in RULES):
        return unsupported(f"Unsupported parameter: '{name}' is not supported.", name)
    return None
