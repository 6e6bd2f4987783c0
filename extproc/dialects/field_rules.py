"""How fields that do not reach an engine are judged: each dialect has a table of them, from names to rules."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from extproc.dialects.json_body import BodyLimits, decode, too_long, unsupported

__all__ = ["Losses", "Rule", "judge"]


class Rule(Struct, frozen=True):
    """How to treat a field that is not carried.

    `neutral` values ask for nothing and pass in silence. Of the others, a field with a `loss` passes (only the values
    in `only`, where it is given) and is reported as lost for that reason; every other value is refused.
    """

    neutral: tuple[Any, ...] = ()
    loss: str | None = None
    only: tuple[Any, ...] | None = None
    refusal: str | None = None  # the error's text, where the general one would not help


Losses: TypeAlias = dict[str, str]
"""What does not reach the engine, each kind of field once, such as `messages[*].annotations`, with the reason."""

_JUDGED_VALUE_BYTES = 128  # neutral values are far shorter
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def judge(path: str, raw: Raw, rule: Rule, losses: Losses, limits: BodyLimits, *, kind: str | None = None) -> None:
    """Apply a rule to a field that is present. Adds to `losses`, as `kind`; raises RequestError.

    Values that no rule names are judged by their length alone: they are not decoded.
    """
    view = memoryview(raw)
    # Too long for any value that a rule names.
    text = bytes(view) if view.nbytes <= _JUDGED_VALUE_BYTES else None
    if text == b"null":
        return
    value = decode(_ANY, text, {}, root=path) if text is not None and (rule.neutral or rule.only) else UNSET
    if value in rule.neutral:
        return
    if rule.loss is None:
        raise unsupported(rule.refusal or f"Unsupported parameter: '{path}' is not supported.", path)
    if view.nbytes > limits.max_option_bytes:
        raise too_long(path, limits.max_option_bytes)
    if rule.only is not None and value not in rule.only:
        raise unsupported(f"This value of '{path}' is not supported.", path, "unsupported_value")
    losses[kind or path] = rule.loss
