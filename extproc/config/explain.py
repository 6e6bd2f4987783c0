"""What the schema found wrong, in the words of somebody who writes the file."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_SHOWN_CHARACTERS = 40


def explain(root: type[BaseModel], path: tuple[Any, ...], detail: Mapping[str, Any]) -> tuple[str, str | None]:
    """A message for one of pydantic's error details, and the word that was probably meant."""
    kind = detail["type"]
    value = detail.get("input")
    context = detail.get("ctx", {})
    if kind == "missing":
        return _missing(root, path), None
    if kind == "extra_forbidden":
        return _unknown(root, path)
    if kind == "literal_error":
        return _not_a_choice(annotation_at(root, path), value)
    if value is None:
        otherwise = "" if _is_required(root, path) else ", or leave the key out"
        return f"has no value: write {_wanted(annotation_at(root, path))} after the ':'{otherwise}", None
    if kind == "value_error":
        return str(context["error"]), None
    if kind == "string_type":
        return f'must be text: write it in quotes, as "{_shown(value)}"', None
    bounds = {
        "greater_than": "must be greater than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
    }
    if kind in bounds:
        limits = {key: _number(limit) for key, limit in context.items()}
        return f"{bounds[kind].format(**limits)}, not {_shown(value)}", None
    if kind == "too_short":
        return "needs at least one item", None
    wanted = _wanted(annotation_at(root, path))
    return f"must be {wanted}, not {_shown(value)}", None


def annotation_at(root: type[BaseModel], path: tuple[Any, ...]) -> Any:
    """The type that the schema wants at `path`, bare of Annotated and None; None where the schema has nothing."""
    annotation: Any = root
    for step in path:
        if isinstance(step, int):
            annotation = get_args(annotation)[0] if get_origin(annotation) is tuple else None
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel) and step in annotation.model_fields:
            annotation = annotation.model_fields[step].annotation
        else:
            annotation = None
        annotation = bare(annotation)
    return annotation


def bare(annotation: Any) -> Any:
    """A type without Annotated and without `| None`."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [member for member in get_args(annotation) if member is not type(None)]
        if len(rest) == 1:
            return bare(rest[0])
    return annotation


def _missing(root: type[BaseModel], path: tuple[Any, ...]) -> str:
    section = annotation_at(root, path[:-1])
    description = section.model_fields[path[-1]].description or ""
    first_sentence = description.split(". ")[0].rstrip(".")
    return f"this key is missing: {first_sentence[:1].lower()}{first_sentence[1:]}"


def _is_required(root: type[BaseModel], path: tuple[Any, ...]) -> bool:
    section = annotation_at(root, path[:-1])
    fields = section.model_fields if isinstance(section, type) and issubclass(section, BaseModel) else {}
    return path[-1] not in fields or fields[path[-1]].is_required()


def _unknown(root: type[BaseModel], path: tuple[Any, ...]) -> tuple[str, str | None]:
    known = list(annotation_at(root, path[:-1]).model_fields)
    meant = _closest(str(path[-1]), known)
    return "unknown key" if meant else f"unknown key; known here: {', '.join(known)}", meant


def _not_a_choice(annotation: Any, value: object) -> tuple[str, str | None]:
    choices = [str(choice) for choice in get_args(annotation)]
    listed = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    meant = _closest(value, choices) if isinstance(value, str) else None
    return f"must be {listed}, not {_shown(value)}", meant


def _closest(word: str, known: list[str]) -> str | None:
    folded = {name.replace("_", "").lower(): name for name in known}
    close = difflib.get_close_matches(word.replace("-", "").replace("_", "").lower(), folded, n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def _wanted(annotation: Any) -> str:
    if get_origin(annotation) is tuple:
        return "a list"
    if get_origin(annotation) is Literal:
        return " or ".join(str(choice) for choice in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"keys such as `{next(iter(annotation.model_fields))}:`"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(annotation, "a value")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "keys"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
