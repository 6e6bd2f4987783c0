"""Sampling fields that Chat Completions and Completions share beyond plain numbers, from the body's text to knobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw

from extproc.dialects.json_body import decode

__all__ = ["ALLOWED", "SAME_NAME", "rare_knobs"]

SAME_NAME = (
    "temperature",
    "top_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
)
"""Fields of both APIs that the neutral form calls the same."""

ALLOWED = {
    "stop": "a string or an array of up to 4 strings, each of 1 to 500 characters",
    "stop_token_ids": "an array of up to 128 token ids",
    "logit_bias": "an object of token ids, each with a number from -100 to 100",
}
"""What the fields of `rare_knobs` may hold, for errors."""

_TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=500)]
_STOP: msgspec.json.Decoder[str | list[str]] = msgspec.json.Decoder(
    _StopString | Annotated[list[_StopString], Meta(max_length=4)]
)
_STOP_TOKEN_IDS: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(Annotated[list[_TokenId], Meta(max_length=128)])
_LOGIT_BIAS = msgspec.json.Decoder(dict[_TokenId, Annotated[float, Meta(ge=-100, le=100)]])


def rare_knobs(carried: Mapping[str, Raw]) -> dict[str, Any]:
    """Knobs of `Sampling` that few requests have, so that they stay text until here. Raises RequestError."""
    knobs: dict[str, Any] = {}
    if "stop" in carried:
        stop = decode(_STOP, carried["stop"], ALLOWED, root="stop")
        knobs["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if "stop_token_ids" in carried:
        ids = decode(_STOP_TOKEN_IDS, carried["stop_token_ids"], ALLOWED, root="stop_token_ids")
        knobs["stop_token_ids"] = tuple(ids)
    if "logit_bias" in carried:
        knobs["logit_bias"] = decode(_LOGIT_BIAS, carried["logit_bias"], ALLOWED, root="logit_bias")
    return knobs
