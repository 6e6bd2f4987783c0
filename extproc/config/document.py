"""Renders the schema as a document for operators. `python -m extproc.config.document` writes it to standard output."""

from __future__ import annotations

import ipaddress
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from extproc.config.address import HostPort, UnixPath
from extproc.config.explain import bare
from extproc.config.schema import Config, Pool, Worker

_OPENING = """\
# Configuration

One YAML file configures the processor, its pools of workers, and the Envoy configuration that goes with them.
`extproc check --config FILE` names every mistake in it with its place. Relative paths start at the file's own folder.
Sizes are in bytes, or text with a unit (`KiB`, `MiB`, `GiB`); names that end in `_s` are seconds. Keys that are not
listed here are mistakes. Words such as `on` and `no` are text and not booleans (YAML 1.2).

A small file:

```yaml
pools:
- name: chat
  models: [{name: small-chat, aliases: [gpt-4o-mini]}]
  workers: [grpc://10.0.0.11:50051, grpc://10.0.0.12:50051]
```

Several pools may serve the same model name. Each request for it goes to one of them, by the weights that the pools give
to the model, and then to a worker of that pool by the pool's policy.
"""


def render() -> str:
    """The whole document, in Markdown."""
    return "\n".join([_OPENING, *_sections("", Config)])


def _sections(prefix: str, section: type[BaseModel]) -> Iterator[str]:
    """A section's own keys as a table, then the sections below it."""
    below: list[tuple[str, type[BaseModel]]] = []
    if section.__doc__ and prefix:
        yield f"## `{prefix}`\n\n{section.__doc__.strip()}\n"
    elif not prefix:
        yield "## The top level\n"
    yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
    for name, field in section.model_fields.items():
        nested, many = _nested(field.annotation)
        if nested is not None:
            path = f"{prefix}.{name}" if prefix else name
            below.append((f"{path}[]" if many else path, nested))
        cells = (f"`{name}`", _type(field), _default(field), field.description or "")
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
    for path, nested in below:
        yield from _sections(path, nested)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section that a field holds, and whether it holds a list of them."""
    annotation = bare(annotation)
    many = get_origin(annotation) is tuple
    if many:
        annotation = bare(get_args(annotation)[0])
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return (annotation if is_section else None), many


def _type(field: FieldInfo) -> str:
    text = _type_name(field.annotation)
    if "MiB" in str(field.default) or "KiB" in str(field.default):
        return "size"
    lower = upper = None
    for mark in field.metadata:
        if isinstance(mark, Ge):
            lower = f"from {mark.ge}"
        elif isinstance(mark, Gt):
            lower = f"over {mark.gt}"
        elif isinstance(mark, Le):
            upper = f"up to {mark.le}"
        elif isinstance(mark, Lt):
            upper = f"below {mark.lt}"
    bounds = " ".join(bound for bound in (lower, upper) if bound)
    return f"{text}, {bounds}" if bounds else text


def _type_name(annotation: Any) -> str:
    annotation = bare(annotation)
    origin = get_origin(annotation)
    if origin is tuple:
        return f"list of {_type_name(get_args(annotation)[0])}"
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin in (Union, types.UnionType):
        members = get_args(annotation)
        if ipaddress.IPv4Network in members:
            return "network"
        if UnixPath in members:
            return "socket"
        return " or ".join(_type_name(member) for member in members)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        named = {Pool: "pool", Worker: "worker"}
        return named.get(annotation, annotation.__name__.lower() if annotation.__name__ == "Model" else "section")
    names = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path"}
    return names.get(annotation, "address" if annotation is HostPort else str(annotation))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.default
    if default is None or default == {}:
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(str(item) for item in default)}]`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`"


if __name__ == "__main__":
    sys.stdout.write(render())
