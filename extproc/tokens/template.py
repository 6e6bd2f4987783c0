"""One chat template, compiled once, rendered per request to the text that the model knows.

The template's text comes from the model or from the operator, never from a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from time import perf_counter
from typing import Any, Literal

import minijinja
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.exceptions import TemplateSyntaxError

from extproc.tokens.conversation import Conversation, Forms, TemplateError, cut_at_tag, variables
from extproc.tokens.sandbox import RefusalError, fast_environment, fast_source, template_environment
from extproc.tokens.source import TokenizerError

__all__ = ["ChatTemplate", "Engine", "FastEngineError", "OutputError"]

Engine = Literal["jinja2", "minijinja"]

_NAME = "chat_template"


class FastEngineError(TemplateError):
    """minijinja failed, which does not say that jinja2 would."""


class _LateError(Exception):
    pass


class OutputError(TemplateError):
    """The template wrote more than it may."""


class ChatTemplate:
    """One template with the special tokens that it can name, compiled by one engine. Safe to share between threads."""

    __slots__ = ("_render", "_special_tokens")

    def __init__(
        self,
        text: str,
        special_tokens: Mapping[str, Any],
        engine: Engine = "jinja2",
        *,
        max_characters: int = 1 << 28,
        fuel: int | None = None,
        max_s: float | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`fuel`: minijinja's steps for one rendering. `max_s`: after which none of our functions is called any more,
        which its steps do not count; with it, not to be shared between threads.

        Raises TokenizerError where the text is not a template.
        """
        self._special_tokens = dict(special_tokens)
        if engine == "jinja2":
            self._render = _jinja_renderer(text, max_characters, now)
        else:
            self._render = _fast_renderer(text, max_characters, fuel, max_s, now)

    def render(self, conversation: Conversation, forms: Forms = Forms()) -> str:  # noqa: B008 - immutable
        """The prompt's text. Raises TemplateError."""
        text = self.fill(variables(conversation, forms))
        return cut_at_tag(text) if conversation.continue_final_message else text

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text with these variables, which win over special tokens. Raises TemplateError."""
        return self._render({**self._special_tokens, **values})


def _jinja_renderer(text: str, max_characters: int, now: Callable[[], datetime]) -> Callable[[dict[str, Any]], str]:
    try:
        compiled = template_environment(now).from_string(text)
        # Every rendering copies them, and jinja's own kind of mapping makes that 8 us dearer.
        compiled.globals = dict(compiled.globals)
    except TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template is not valid, line {error.lineno}: {error.message}") from error
    # Jinja compiles to Python: what nests too deep or leaves a loop from inside a block fails only there.
    except (JinjaError, SyntaxError, RecursionError, ValueError) as error:
        raise TokenizerError(f"the chat template does not compile: {error}") from error

    def render(values: dict[str, Any]) -> str:
        try:
            return _joined(compiled.generate(values), max_characters)
        except TemplateError:
            raise
        except MemoryError as error:
            raise OutputError("the chat template needs too much memory for this conversation") from error
        except JinjaError as error:
            raise TemplateError(error.message or f"the chat template failed: {type(error).__name__}") from error
        except Exception as error:
            # The template is a program of the model's author: whatever it raises says that it does not take this
            # conversation (a missing key, a wrong type, a too deep value).
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error

    return render


def _joined(pieces: Iterable[str], max_characters: int) -> str:
    """All pieces; OutputError as soon as they are too many."""
    kept: list[str] = []
    for piece in pieces:
        kept.append(piece)
        max_characters -= len(piece)
        if max_characters < 0:
            raise OutputError("the chat template makes too long a text of this conversation")
    return "".join(kept)


def _fast_renderer(
    text: str, max_characters: int, fuel: int | None, max_s: float | None, now: Callable[[], datetime]
) -> Callable[[dict[str, Any]], str]:
    deadline = float("inf")

    def check() -> None:
        if perf_counter() > deadline:
            raise _LateError("it took too long")

    environment = fast_environment(now, None if max_s is None else check)
    if fuel is not None:
        environment.fuel = fuel
    try:
        environment.add_template(_NAME, fast_source(text))
    except minijinja.TemplateError as error:
        raise TokenizerError(f"minijinja does not compile the chat template: {error}") from error
    render_template = environment.render_template

    def render(values: dict[str, Any]) -> str:
        nonlocal deadline
        if max_s is not None:
            deadline = perf_counter() + max_s
        try:
            rendered = render_template(_NAME, **values)
        except RefusalError as error:
            raise TemplateError(error.message or "the chat template refused the conversation") from error
        except BaseException as error:
            # A panic of the library is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise FastEngineError(f"the chat template failed: {error}") from error
        if len(rendered) > max_characters:
            raise OutputError("the chat template makes too long a text of this conversation")
        return rendered

    return render
