"""The Jinja environment in which model authors write and test chat templates: the one that transformers sets up.

A template is the model author's program, not trusted: it runs in jinja2's sandbox, without access to files, modules or
private attributes, and cannot change what it is given. `fast_environment` is the same language as minijinja speaks it,
2 to 10 times faster; nobody promises that both give the same text, so `template_inspection` compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import minijinja
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["RefusalError", "fast_environment", "fast_source", "template_environment"]


class RefusalError(TemplateError):
    """What `raise_exception` raises: the template's own words."""


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote; training masks need it, rendering does not.

    Its body is a call block and so has a scope of its own, as in transformers.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _GuardedNamespace(Namespace):
    """`namespace(...)` without names that start with an underscore."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in dict(*args, **kwargs):
            _refuse_private(name)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _DictFactory:
    """`dict(...)` and `dict.fromkeys(...)`, nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    @staticmethod
    def fromkeys(keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _refuse_private(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold the private name {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, >, & and ' for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise RefusalError(message)


def _strftime(now: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        return now().strftime(form)

    return strftime_now


def template_environment(now: Callable[[], datetime] = datetime.now) -> ImmutableSandboxedEnvironment:
    """A new environment with the flags, filters and globals that templates rely on. `now`: what templates see."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the output is a prompt, not HTML
        extensions=[_GenerationTag, loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime(now)
    environment.globals["namespace"] = _GuardedNamespace
    environment.globals["dict"] = _DictFactory()
    return environment


def _is_iterable(value: Any) -> bool:
    # For minijinja itself even none is iterable, and templates test `tools is iterable`.
    return value is not None and hasattr(value, "__iter__")


def fast_environment(
    now: Callable[[], datetime] = datetime.now, before: Callable[[], None] | None = None
) -> minijinja.Environment:
    """The same in minijinja. Templates need `fast_source` first.

    `before` is called before each of our functions, whose cost minijinja does not count; what it raises ends the
    rendering.
    """

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        if before is None:
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            return function(*args, **kwargs)

        return call

    environment = minijinja.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        debug=False,
        auto_escape_callback=lambda _: False,
        filters={"tojson": guarded(_to_json)},
        tests={"iterable": guarded(_is_iterable)},
    )
    environment.add_global("raise_exception", _raise_exception)
    environment.add_global("strftime_now", guarded(_strftime(now)))
    return environment


_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


def fast_source(text: str) -> str:
    """The template's text for minijinja, which has no `generation` tag: `with` has a scope of its own, too."""
    return _GENERATION.sub(lambda tag: f"{{%{tag[1]} {tag[2] or ''}with {tag[3]}%}}", text)
