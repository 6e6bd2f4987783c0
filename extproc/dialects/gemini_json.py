"""Google's JSON: every field has two names, such as `maxOutputTokens` and `max_output_tokens`, and clients mix them.

A schema is written once, with the names in snake case; `in_both_cases` makes it take both.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

_S = TypeVar("_S", bound=type[Struct])
_T = TypeVar("_T", bound=Struct)

_SNAKE = "snake_"


def in_both_cases(schema: _S) -> _S:
    """For a Struct with `rename="camel"`: the same, which also takes each name as it is in snake case.

    Fields of several words need defaults. What came in snake case is moved to its place at once.
    """
    return _with_twins(schema, {"__post_init__": unite})


def in_both_cases_later(schema: _S) -> _S:
    """The same for objects that are many: who reads one calls `unite`, unless it is equal to one without such names."""
    return _with_twins(schema, {})


def unite(value: _T) -> _T:
    """Move what came in snake case to its place."""
    for name, twin in type(value).__twins__:  # type: ignore[attr-defined]
        held = getattr(value, twin)
        if held is not UNSET:
            setattr(value, name, held)
            setattr(value, twin, UNSET)
    return value


def camel(name: str) -> str:
    """`max_output_tokens` as `maxOutputTokens`."""
    first, *rest = name.split("_")
    return first + "".join([word[:1].upper() + word[1:] for word in rest])


def _with_twins(schema: _S, namespace: dict[str, Any]) -> _S:
    hints = get_type_hints(schema, include_extras=True)
    twins = {name: _SNAKE + name for name in schema.__struct_fields__ if "_" in name}
    fields = []
    for name, twin in twins.items():
        said = next(extra for extra in hints[name].__metadata__ if isinstance(extra, str))
        fields.append((twin, Annotated[hints[name] | UnsetType, said], UNSET))
    return msgspec.defstruct(  # type: ignore[return-value]
        schema.__name__,
        fields,
        bases=(schema,),
        rename={twin: name for name, twin in twins.items()},
        module=schema.__module__,
        namespace={**namespace, "__twins__": tuple(twins.items())},
        forbid_unknown_fields=schema.__struct_config__.forbid_unknown_fields,
        gc=schema.__struct_config__.gc,
    )
