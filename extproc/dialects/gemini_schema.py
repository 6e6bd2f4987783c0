"""Schemas as Google writes them, a part of OpenAPI's with types in upper case, to JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from extproc.dialects.gemini_json import camel
from extproc.dialects.json_body import invalid

_TYPES = frozenset(("string", "number", "integer", "boolean", "array", "object", "null"))
_COUNTS = frozenset(("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties"))
_AS_THEY_ARE = frozenset(
    ("title", "description", "default", "enum", "required", "pattern", "minimum", "maximum", "format")
)
_NO_FORMATS = frozenset(("enum", "int32", "int64", "float", "double"))
"""Formats that say what the type says."""


def json_schema(schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The same in JSON Schema; values are not copied. Raises RequestError with the place of what it does not know.

    `schema` must not be deeper than the limit for bodies.
    """
    made: dict[str, Any] = {}
    nullable = False
    order: list[str] = []
    for key, value in schema.items():
        name = camel(key) if key[:1] not in ("$", "_") else key
        place = f"{path}.{key}"
        if value is None:
            continue
        if name == "type":
            kind = _type(value, place)
            if kind is not None:
                made["type"] = kind
        elif name == "nullable":
            nullable = value is True
        elif name == "propertyOrdering":
            order = _strings(value, place)
        elif name == "example":
            made["examples"] = [value]
        elif name in _COUNTS:
            made[name] = _count(value, place)
        elif name in _NESTED:
            made[_JSON_NAMES.get(name, name)] = _NESTED[name](value, place)
        elif name == "format":
            if value not in _NO_FORMATS:
                made[name] = value
        elif name in _AS_THEY_ARE:
            made[name] = value
        elif name in ("ref", "$ref"):
            made["$ref"] = str(value).replace("#/defs/", "#/$defs/")
        else:
            raise invalid(f"'{place}' is no field of a schema.", place, "unknown_parameter")
    if order and "properties" in made:
        made["properties"] = _ordered(made["properties"], order)
    return _nullable(made) if nullable else made


def _type(value: object, place: str) -> str | list[str] | None:
    if isinstance(value, list):
        return [kind for each in value if isinstance(kind := _type(each, place), str)]
    kind = value.lower() if isinstance(value, str) else ""
    if kind == "type_unspecified":
        return None
    if kind not in _TYPES:
        raise invalid(f"Invalid value for '{place}': expected the name of a type.", place, "invalid_value")
    return kind


def _count(value: object, place: str) -> int:
    """Numbers of 64 bits may come as strings."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise invalid(f"Invalid value for '{place}': expected an integer of at least 0.", place, "invalid_value")


def _strings(value: object, place: str) -> list[str]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    raise invalid(f"Invalid type for '{place}': expected an array of strings.", place, "invalid_type")


def _one(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"Invalid type for '{place}': expected a schema.", place, "invalid_type")
    return json_schema(value, place)


def _one_or_boolean(value: object, place: str) -> object:
    return value if isinstance(value, bool) else _one(value, place)


def _many(value: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise invalid(f"Invalid type for '{place}': expected an array of schemas.", place, "invalid_type")
    return [_one(each, f"{place}[{index}]") for index, each in enumerate(value)]


def _named(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise invalid(f"Invalid type for '{place}': expected an object of schemas.", place, "invalid_type")
    return {name: _one(each, f"{place}.{name[:64]}") for name, each in value.items()}


_NESTED: Mapping[str, Callable[[object, str], object]] = {
    "items": _one,
    "additionalProperties": _one_or_boolean,
    "anyOf": _many,
    "prefixItems": _many,
    "properties": _named,
    "defs": _named,
    "$defs": _named,
}
_JSON_NAMES = {"defs": "$defs"}


def _ordered(properties: dict[str, Any], order: list[str]) -> dict[str, Any]:
    """Engines write properties in the order of the schema."""
    return {name: properties[name] for name in order if name in properties} | properties


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if "anyOf" in schema:
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema
