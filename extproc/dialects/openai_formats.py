"""The form that an answer must have: OpenAI's `response_format`, and what vLLM and SGLang take beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from extproc.dialects.json_body import BodyLimits, check_depth, check_weight, decode, descriptions, invalid, unsupported
from extproc.ir import OutputFormat

__all__ = ["FORMAT_FIELDS", "format_of"]

_Name = Annotated[str, Meta(min_length=1, max_length=64)]


class _Schema(Struct, forbid_unknown_fields=True):
    name: Annotated[_Name | None, "a name of 1 to 64 characters"] = None
    description: Annotated[str | None, "a string"] = None
    schema: Annotated[dict[str, Any] | None, "a JSON Schema"] = None
    strict: Annotated[bool | None, "a boolean"] = None


class _ResponseFormat(Struct):
    type: Annotated[str, "'text', 'json_object' or 'json_schema'"]
    json_schema: Annotated[_Schema | None, "an object with a name and a schema"] = None


class _StructuredOutputs(Struct, forbid_unknown_fields=True):
    json: Annotated[dict[str, Any] | str | None, "a JSON Schema"] = None
    regex: Annotated[str | None, "a string"] = None
    choice: Annotated[list[str] | None, "an array of strings"] = None
    grammar: Annotated[str | None, "a string"] = None
    json_object: Annotated[bool | None, "a boolean"] = None
    structural_tag: Annotated[str | None, "a string"] = None


_RESPONSE_FORMAT = msgspec.json.Decoder(_ResponseFormat)
_STRUCTURED = msgspec.json.Decoder(_StructuredOutputs)
_ANY_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ALLOWED = (
    {"response_format": "an object with a type", "structured_outputs": "an object"}
    | descriptions(_ResponseFormat, "response_format.")
    | descriptions(_StructuredOutputs, "structured_outputs.")
)
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_SCHEMA: msgspec.json.Decoder[dict[str, Any] | str] = msgspec.json.Decoder(dict[str, Any] | str)

FORMAT_FIELDS = (
    "response_format",
    "structured_outputs",
    # vLLM before it had structured_outputs
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    # SGLang
    "json_schema",
    "regex",
    "ebnf",
)


def format_of(carried: Mapping[str, Raw], limits: BodyLimits) -> OutputFormat | None:
    """The form that these fields ask for; None for any text. Raises RequestError where several ask for one."""
    found: OutputFormat | None = None
    for name in FORMAT_FIELDS:
        if name not in carried:
            continue
        raw = carried[name]
        check_weight(raw, name, limits.max_option_bytes, limits.max_option_containers)
        form = _one(name, raw, limits)
        if form is None:
            continue
        if found is not None:
            raise invalid(
                f"'{found.path}' and '{form.path}' both say what form the answer must have: send one of them.",
                form.path,
                "invalid_value",
            )
        found = form
    return found


def _one(name: str, raw: Raw, limits: BodyLimits) -> OutputFormat | None:
    match name:
        case "response_format":
            return _response_format(raw, limits)
        case "structured_outputs":
            return _structured(decode(_STRUCTURED, raw, _ALLOWED, root=name), limits)
        case "guided_json" | "json_schema":
            schema = decode(_SCHEMA, raw, {name: "a JSON Schema"}, root=name)
            return OutputFormat(kind="json_schema", schema=_schema_of(schema, name, limits), path=name)
        case "guided_regex" | "regex":
            return OutputFormat(kind="regex", text=decode(_TEXT, raw, {name: "a string"}, root=name), path=name)
        case "guided_choice":
            choices = decode(_TEXTS, raw, {name: "an array of strings"}, root=name)
            return OutputFormat(kind="choice", choices=tuple(choices), path=name)
        case _:
            return OutputFormat(kind="grammar", text=decode(_TEXT, raw, {name: "a string"}, root=name), path=name)


def _response_format(raw: Raw, limits: BodyLimits) -> OutputFormat | None:
    path = "response_format"
    form = decode(_RESPONSE_FORMAT, raw, _ALLOWED, root=path)
    if form.type == "text":
        return None
    if form.type == "json_object":
        return OutputFormat(kind="json_object", path=path)
    if form.type == "structural_tag":
        return OutputFormat(kind="structural_tag", schema=_ANY_OBJECT.decode(raw), path=path)
    if form.type != "json_schema":
        raise unsupported(
            f"This value of '{path}.type' is not supported: expected {_ALLOWED[f'{path}.type']}.",
            f"{path}.type",
            "unsupported_value",
        )
    inner = form.json_schema
    if inner is None:
        raise invalid(
            f"Missing required parameter: '{path}.json_schema'.", f"{path}.json_schema", "missing_required_parameter"
        )
    if inner.schema is None:
        return OutputFormat(kind="json_object", name=inner.name, description=inner.description, path=path)
    check_depth(inner.schema, f"{path}.json_schema.schema", limits)
    return OutputFormat(
        kind="json_schema",
        schema=inner.schema,
        name=inner.name,
        description=inner.description,
        strict=inner.strict,
        path=path,
    )


def _structured(asked: _StructuredOutputs, limits: BodyLimits) -> OutputFormat | None:
    path = "structured_outputs"
    forms: list[OutputFormat] = []
    if asked.json is not None:
        schema = _schema_of(asked.json, f"{path}.json", limits)
        forms.append(OutputFormat(kind="json_schema", schema=schema, path=f"{path}.json"))
    if asked.regex is not None:
        forms.append(OutputFormat(kind="regex", text=asked.regex, path=f"{path}.regex"))
    if asked.choice is not None:
        forms.append(OutputFormat(kind="choice", choices=tuple(asked.choice), path=f"{path}.choice"))
    if asked.grammar is not None:
        forms.append(OutputFormat(kind="grammar", text=asked.grammar, path=f"{path}.grammar"))
    if asked.json_object:
        forms.append(OutputFormat(kind="json_object", path=f"{path}.json_object"))
    if asked.structural_tag is not None:
        tag = _schema_of(asked.structural_tag, f"{path}.structural_tag", limits)
        forms.append(OutputFormat(kind="structural_tag", schema=tag, path=f"{path}.structural_tag"))
    if len(forms) > 1:
        raise invalid(f"'{path}' may ask for one form only.", path, "invalid_value")
    return forms[0] if forms else None


def _schema_of(value: dict[str, Any] | str, path: str, limits: BodyLimits) -> dict[str, Any]:
    """A schema as an object or as its JSON text."""
    schema = (
        decode(_ANY_OBJECT, value.encode(), {path: "a JSON object"}, root=path) if isinstance(value, str) else value
    )
    check_depth(schema, path, limits)
    return schema
