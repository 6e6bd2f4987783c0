"""JSON bodies to typed values, with errors that a client can act on.

msgspec decodes and checks in one pass; its error says where and roughly what. The text that a client reads comes from
the schema itself: each field of a body's Struct carries a plain string in its `Annotated` type that says what is
allowed, and `descriptions` collects them by path.

A repeated key is no error: the last one counts, as in the clients' own JSON libraries. Nothing behind the parser reads
the client's bytes again, so there is nobody to disagree.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from extproc.ir import ErrorInfo, ErrorKind, RequestError

_T = TypeVar("_T")

_PLACE = re.compile(r"(?s)^(.*) - at (`key` in )?`\$(.*)`$")
_FIELD = re.compile(r"(?s)^Object (missing required|contains unknown) field `(.*)`$")
_WRONG_TYPE = re.compile(r"^Expected `(.*)`, got `(.*)`$")
_BOUND = re.compile(r"^Expected `(\w+)` (?:of length )?([<>])")
_OUT_OF_RANGE = re.compile(r"^(?:Number|Integer value) out of range$")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# Half of a surrogate pair so close to the end that msgspec, which reads the other half unseen, calls it truncated.
_HALF_PAIR_AT_END = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}[^\\].{0,4}\Z", re.DOTALL)
_TAIL_BYTES = 64
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_INDEX = re.compile(r"\[(?:\d+|\.\.\.)\]")

_JSON_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a decimal number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_BOUND_CODES = {
    ("int", "<"): "integer_above_max_value",
    ("int", ">"): "integer_below_min_value",
    ("float", "<"): "decimal_above_max_value",
    ("float", ">"): "decimal_below_min_value",
    ("array", "<"): "array_above_max_length",
    ("array", ">"): "empty_array",
    ("object", "<"): "object_above_max_properties",
    ("str", "<"): "string_above_max_length",
    ("str", ">"): "empty_string",
}
_SHOWN_NAME_CHARS = 64
_LEAST_MAX_STRINGS = 250_000
_STRINGS_PER_MESSAGE = 25
_HARMLESS_BYTES = 2 * _LEAST_MAX_STRINGS  # a string takes two at least


class BodyLimits(Struct, frozen=True, kw_only=True):
    """Bounds on what one request's body holds, beside its size."""

    max_depth: int = 64  # levels of objects and arrays where any JSON is allowed; elsewhere the schema is the bound
    max_messages: int = 10_000  # and parts of content, in all messages together
    max_choices: int = 128  # `n`
    max_token_ids: int = 1_000_000  # in one array
    max_option_bytes: int = 262_144  # JSON text of one field of free form, such as `logit_bias`
    max_option_containers: int = 4096  # objects and arrays in one field of free form
    max_tools: int = 1024
    max_tools_bytes: int = 1 << 20  # JSON text of all tools together, which takes about 10 ms
    max_tools_containers: int = 32_768

    @property
    def max_strings(self) -> int:
        """Keys and values that are strings, three times as many as a message with parts and a name needs.

        Decoding takes up to 0.3 us for each, and the event loop waits.
        """
        return max(_LEAST_MAX_STRINGS, _STRINGS_PER_MESSAGE * self.max_messages)


def invalid(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    """An error about the request's content."""
    return RequestError(ErrorInfo(kind=ErrorKind.INVALID_REQUEST, message=message, param=param, code=code))


def unsupported(message: str, param: str, code: str = "unsupported_parameter") -> RequestError:
    """An error about something that the dialect has and this gateway has not (yet)."""
    return RequestError(ErrorInfo(kind=ErrorKind.UNSUPPORTED, message=message, param=param, code=code))


def decode(
    decoder: msgspec.json.Decoder[_T],
    data: bytes | msgspec.Raw,
    allowed: Mapping[str, str],
    *,
    root: str = "",
    unknown: Callable[[str, str], RequestError | None] | None = None,
) -> _T:
    """Decode `data`, the value at the path `root` of the body ("" for the body itself, see also `check_strings`).

    `allowed` says what may stand at each path (see `descriptions`). `unknown` may turn a field that the schema does
    not have, given as name and path, into a better error. Raises RequestError.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _explain(str(error), allowed, root, unknown) from None
    except RecursionError:
        raise too_deep(root) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        text = bytes(data)
        if not text or text.isspace():
            raise invalid("The request has no body.", None, "invalid_json") from None
        reason = (
            "text that is no UTF-8" if isinstance(error, UnicodeError) else _malformed(str(error), text[-_TAIL_BYTES:])
        )
        raise invalid(f"The request body is not valid JSON: {reason}.", root or None, "invalid_json") from None


def too_deep(param: str) -> RequestError:
    """The error for values nested deeper than allowed."""
    return invalid("The request body is nested too deeply.", param or None, "invalid_json")


def too_long(param: str, limit_bytes: int) -> RequestError:
    """The error for a field whose JSON text is longer than allowed."""
    return invalid(f"'{param}' is too long: at most {limit_bytes} bytes are allowed.", param, "invalid_value")


def check_strings(body: bytes, limits: BodyLimits) -> None:
    """Refuse a body of very many strings, which would keep the event loop busy, before anything is built from it.

    A quotation mark without a backslash before it begins or ends a string in any JSON, whatever text the strings
    hold. So this counts no string too many; one that ends with a backslash counts half, and no known key does.
    Costs nothing for bodies of ordinary size, else 0.3 ns per byte, and 1 to 2 ns where quotation marks abound.
    """
    if len(body) <= _HARMLESS_BYTES:
        return
    most = 2 * limits.max_strings
    if (marks := body.count(b'"')) > most and marks - body.count(b'\\"') > most:
        raise invalid(
            f"The request body holds too many strings: at most {limits.max_strings} are allowed, keys included.",
            None,
            "invalid_value",
        )


def free_object(raw: msgspec.Raw, path: str, limits: BodyLimits) -> dict[str, Any]:
    """The object of any content at `path`, within the limits. Raises RequestError."""
    check_weight(raw, path, limits.max_option_bytes, limits.max_option_containers)
    value = decode(_OBJECT, raw, {_INDEX.sub("[]", path): "an object"}, root=path)
    check_depth(value, path, limits)
    return value


def check_depth(value: object, path: str, limits: BodyLimits) -> None:
    """Raises RequestError for decoded JSON that is nested too deeply."""
    if depth(value, limits.max_depth) > limits.max_depth:
        raise too_deep(path)


def check_weight(raw: msgspec.Raw, path: str, most_bytes: int, most: int) -> None:
    """Refuse JSON text of too many bytes, or objects and arrays, before anything is built from it."""
    view = memoryview(raw)
    if view.nbytes > most_bytes:
        raise too_long(path, most_bytes)
    text = bytes(view)
    if text.count(b"{") + text.count(b"[") > most:
        # Braces in strings are text.
        text = _STRING.sub(b"", text)
        if text.count(b"{") + text.count(b"[") > most:
            raise invalid(
                f"'{path}' holds too many values: at most {most} objects and arrays are allowed.", path, "invalid_value"
            )


def depth(value: object, limit: int) -> int:
    """How deep decoded JSON is nested, counted up to `limit` + 1; a scalar has depth 0."""
    deepest = 0
    level: list[object] = [value]
    while deepest <= limit:
        containers = [v for v in level if isinstance(v, dict | list)]
        if not containers:
            break
        deepest += 1
        level = [inner for c in containers for inner in (c.values() if isinstance(c, dict) else c)]
    return deepest


def descriptions(schema: type[Struct], prefix: str = "") -> dict[str, str]:
    """What is allowed, by path: the string in each field's `Annotated`, down through nested Structs.

    Paths look like `messages[].content[].text`, with the names of the JSON. Raises TypeError for a field without a
    description.
    """
    found: dict[str, str] = {}
    names = dict(zip(schema.__struct_fields__, schema.__struct_encode_fields__, strict=True))
    for name, hint in get_type_hints(schema, include_extras=True).items():
        path = f"{prefix}{names[name]}"
        texts = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)]
        if not texts:
            raise TypeError(f"{schema.__name__}.{name} does not say what is allowed")
        found[path] = texts[0]
        found |= _nested(hint, path)
    return found


def _nested(hint: Any, path: str) -> dict[str, str]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return descriptions(hint, f"{path}.")
    origin = get_origin(hint)
    if origin is Annotated:
        return _nested(get_args(hint)[0], path)
    if origin is list:
        return _nested(get_args(hint)[0], f"{path}[]")
    found: dict[str, str] = {}
    if origin is types.UnionType or str(origin) == "typing.Union":
        for member in get_args(hint):
            found |= _nested(member, path)
    return found


def _explain(
    text: str,
    allowed: Mapping[str, str],
    root: str,
    unknown: Callable[[str, str], RequestError | None] | None,
) -> RequestError:
    in_key = False
    path = whole_path = root
    if placed := _PLACE.match(text):
        text, key, below = placed.groups()
        in_key = key is not None
        whole_path = (root + below).lstrip(".")
        path = whole_path.partition("[...]")[0]  # msgspec does not tell keys
    if field := _FIELD.match(text):
        kind, name = field.groups()
        name = name if len(name) <= _SHOWN_NAME_CHARS else f"{name[:_SHOWN_NAME_CHARS]}…"
        full = f"{path}.{name}" if path else name
        if kind == "missing required":
            return invalid(f"Missing required parameter: '{full}'.", full, "missing_required_parameter")
        return (unknown and unknown(name, full)) or invalid(f"Unknown parameter: '{full}'.", full, "unknown_parameter")
    if not path:
        return invalid("The request body must be a JSON object.", None, "invalid_type")
    if _OUT_OF_RANGE.match(text) and _INDEX.sub("[]", whole_path) not in allowed:
        return invalid(f"Invalid value for '{path}': it holds a number that is out of range.", path, "invalid_value")
    expected = _expected(allowed, path)
    if in_key:
        return invalid(f"Invalid key in '{path}': expected {expected}.", path, f"{path}_invalid_key")
    if wrong := _WRONG_TYPE.match(text):
        got = _JSON_NAMES.get(wrong.group(2), "something else")
        return invalid(f"Invalid type for '{path}': expected {expected}, but got {got}.", path, "invalid_type")
    code = "invalid_value"
    if bound := _BOUND.match(text):
        code = _BOUND_CODES.get((bound.group(1), bound.group(2)), code)
    return invalid(f"Invalid value for '{path}': expected {expected}.", path, code)


def _expected(allowed: Mapping[str, str], path: str) -> str:
    """What is allowed at a path, or else what is allowed at the value that holds it."""
    path = _INDEX.sub("[]", path)
    while path not in allowed and path.endswith("[]"):
        path = path[:-2]
    return allowed.get(path, "another value")


def _malformed(text: str, tail: bytes) -> str:
    """`tail`: the last bytes of the body."""
    if "surrogate" in text or (text.startswith("Input data was truncated") and _HALF_PAIR_AT_END.search(tail)):
        return "a string holds half of a surrogate pair"
    if text.startswith("Input data was truncated"):
        return "it ends in the middle of a value"
    if text.startswith("Invalid UTF-8"):
        return "text that is no UTF-8"
    return text.removeprefix("JSON is malformed: ")
