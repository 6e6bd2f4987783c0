"""Texts that a request gives as a string, as token ids, or as an array of either: `prompt` and `input`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw

from extproc.dialects.json_body import BodyLimits, decode, invalid

__all__ = ["ALLOWED_PROMPTS", "Prompts", "prompts_of"]

_UINT31 = 2**31 - 1

Prompts: TypeAlias = tuple[str | tuple[int, ...], ...]

_TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=_UINT31)]
_Prompts: TypeAlias = str | list[str | _TokenId | list[_TokenId]]
_PROMPTS: msgspec.json.Decoder[str | list[str | int | list[int]]] = msgspec.json.Decoder(_Prompts)

ALLOWED_PROMPTS = "a string, an array of strings, an array of token ids or an array of arrays of token ids"


def prompts_of(raw: Raw, path: str, limits: BodyLimits, *, most: int) -> Prompts:
    """Each text by itself, in order; `most`: how many there may be. Raises RequestError.

    An array of ids is one text.
    """
    value = decode(_PROMPTS, raw, {path: ALLOWED_PROMPTS}, root=path)
    if isinstance(value, str):
        return (value,)
    if not value:
        raise invalid(f"Invalid value for '{path}': the array is empty.", path, "empty_array")
    kinds = {type(each) for each in value}
    if len(kinds) > 1:
        raise invalid(
            f"Invalid type for '{path}': expected {ALLOWED_PROMPTS}, but got a mixture.", path, "invalid_type"
        )
    prompts: Prompts
    if kinds == {int}:
        prompts = (_ids(value, path, limits),)
    elif len(value) > most:
        raise invalid(f"Too many texts in '{path}': at most {most} are allowed.", path, "array_above_max_length")
    elif kinds == {str}:
        prompts = tuple([each for each in value if isinstance(each, str)])
    else:
        prompts = tuple(
            [_ids(each, f"{path}[{at}]", limits) for at, each in enumerate(value) if isinstance(each, list)]
        )
    return prompts


def _ids(value: list[int] | list[str | int | list[int]], path: str, limits: BodyLimits) -> tuple[int, ...]:
    if not value:
        raise invalid(f"Invalid value for '{path}': the array is empty.", path, "empty_array")
    if len(value) > limits.max_token_ids:
        raise invalid(
            f"Too many token ids in '{path}': at most {limits.max_token_ids} are allowed.",
            path,
            "array_above_max_length",
        )
    return tuple([each for each in value if isinstance(each, int)])
