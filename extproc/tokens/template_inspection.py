"""What a chat template handles, whether minijinja renders it as jinja2 does, and what it costs.

Runs in a child process, as a template may be endless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from time import perf_counter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from extproc.tokens.conversation import Conversation, Forms, TemplateError, variables
from extproc.tokens.source import TokenizerError
from extproc.tokens.template import ChatTemplate
from extproc.tokens.template_growth import find_growth
from extproc.tokens.template_probes import long_conversation, probe_conversations

__all__ = ["Costs", "Profile", "inspect_template"]

_PROBE = "qzProbeqz"
_KEY, _VALUE = "qzKeyqz", "qzValueqz"
_SIZES = (1, 41, 161)  # messages
_LONG = 200_000  # characters
_MOST_REFUSED_ALONE = 4  # probes rendered for each that minijinja alone refuses
_NINE = ("length != 9", "length == 9", "length 9")  # of templates that check the ids of calls


class Costs(Struct, frozen=True):
    """Seconds of a rendering, as measured with the engine that serves; the largest of several kinds of conversation."""

    base: float
    message: float
    message_squared: float
    character: float  # of a message's content
    json_character: float  # of tools, documents and tool calls

    def estimate(self, messages: int, characters: int, json_characters: int) -> float:
        """Seconds that a conversation of this size takes."""
        return (
            self.base
            + messages * (self.message + messages * self.message_squared)
            + characters * self.character
            + json_characters * self.json_character
        )


class Profile(Struct, frozen=True):
    """What is known of a template after its inspection."""

    forms: Forms = Forms()
    difference: str | None = "it is not inspected"  # why minijinja must not render it; None where both agree
    refuses_alike: bool = False  # minijinja also refuses just what jinja2 refuses
    costs: Costs | None = None  # with minijinja; None where it does not serve, or could not be measured
    growth: str | None = None  # why minijinja must render it in a child only; None where nothing can grow


def inspect_template(text: str, special_tokens: Mapping[str, Any]) -> Profile:
    """Everything about one template. Takes about 0.1 to 0.3 s. Raises TokenizerError where the text is no template."""
    moment = datetime(2026, 7, 4, 12, 30, 45)
    reference = ChatTemplate(text, special_tokens, "jinja2", now=lambda: moment)
    forms = replace(_find_forms(reference, "developer" in text), short_call_ids=any(sign in text for sign in _NINE))
    try:
        fast = ChatTemplate(text, special_tokens, "minijinja", now=lambda: moment)
    except TokenizerError as error:
        return Profile(forms, str(error))
    difference, refused_alone = _compare(reference, fast, forms)
    costs = None if difference else _measure(fast, forms)
    return Profile(forms, difference, not refused_alone, costs, find_growth(text))


def _find_forms(template: ChatTemplate, knows_developer: bool) -> Forms:
    def shows(content: Any) -> bool:
        """Whether the content reaches the text as text, not as the notation of a list or letter by letter."""
        text = _try(template, Conversation(messages=[{"role": "user", "content": content}]), Forms())
        return text is not None and _PROBE in text and "'type'" not in text and '"type"' not in text

    takes_text, takes_parts = shows(_PROBE), shows([{"type": "text", "text": _PROBE}])
    # One that refuses a lone user message says nothing; nearly all templates take strings.
    forms = Forms(takes_text or not takes_parts, takes_parts, knows_developer)
    as_object, as_text = (
        _shows_arguments(template, Forms(forms.takes_text, takes_parts, knows_developer, argument_objects))
        for argument_objects in (True, False)
    )
    return Forms(forms.takes_text, takes_parts, knows_developer, as_object or not as_text)


def _shows_arguments(template: ChatTemplate, forms: Forms) -> bool:
    """Whether a call's arguments reach the text as JSON or the template's own markup, not as a quoted string."""
    function = {"name": "f", "arguments": f'{{"{_KEY}": "{_VALUE}"}}'}
    call = {"id": "call00000", "type": "function", "function": function}
    parts: Callable[[str], Any] = lambda text: text if forms.takes_text else [{"type": "text", "text": text}]  # noqa: E731
    talk = [
        {"role": "user", "content": parts("hi")},
        {"role": "assistant", "content": parts(""), "tool_calls": [call]},
        {"role": "tool", "content": parts("x"), "tool_call_id": "call00000", "name": "f"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]
    text = _try(template, Conversation(messages=talk, tools=tools), forms)
    if text is None or _KEY not in text or _VALUE not in text:
        return False
    return f"'{_KEY}'" not in text and f'\\"{_KEY}' not in text


def _compare(reference: ChatTemplate, fast: ChatTemplate, forms: Forms) -> tuple[str | None, int]:
    """Why minijinja must not serve, and how many probes it alone refused.

    Text that differs, or is there where jinja2 refuses, is a wrong prompt. What only minijinja refuses costs a second
    rendering, as jinja2 then decides: a few such are better than none served fast.
    """
    rendered = refused_alone = 0
    for at, probe in enumerate(probe_conversations()):
        expected, text = _try(reference, probe, forms), _try(fast, probe, forms)
        if text is not None and expected != text:
            return f"both engines render its probe {at} differently", refused_alone
        rendered += text is not None
        refused_alone += expected is not None and text is None
    return (None if rendered > _MOST_REFUSED_ALONE * refused_alone else "minijinja refuses too much"), refused_alone


def _try(template: ChatTemplate, conversation: Conversation, forms: Forms) -> str | None:
    try:
        return template.render(conversation, forms)
    except TemplateError:
        return None


def _measure(template: ChatTemplate, forms: Forms) -> Costs | None:
    found = [costs for tools in (False, True) if (costs := _measure_kind(template, forms, tools)) is not None]
    if not found:
        return None
    return Costs(*(max(getattr(costs, name) for costs in found) for name in Costs.__struct_fields__))


def _measure_kind(template: ChatTemplate, forms: Forms, tools: bool) -> Costs | None:
    """From conversations of three lengths, and one with long messages."""
    try:
        timed = []
        for size in _SIZES:
            conversation = _in_form(long_conversation(size, 100, tools=tools), forms)
            timed.append((len(conversation.messages), _seconds(template, conversation, forms)))
        long = _in_form(long_conversation(1, _LONG, tools=False), forms)
        character = (_seconds(template, long, forms) - timed[0][1]) / _LONG
        description = "A sentence about it. " * (_LONG // 210)
        tool = {"type": "function", "function": {"name": "f", "description": description, "parameters": {}}}
        many = Conversation(
            messages=_in_form(long_conversation(1, 100, tools=False), forms).messages, tools=[tool] * 10
        )
        json_character = (_seconds(template, many, forms) - timed[0][1]) / _LONG
    except TemplateError:
        return None
    (n0, t0), (n1, t1), (n2, t2) = timed
    first, second = (t1 - t0) / (n1 - n0), (t2 - t1) / (n2 - n1)
    squared = max(0.0, (second - first) / (n2 - n0))
    return Costs(t0, max(0.0, first - squared * (n1 + n0)), squared, max(0.0, character), max(0.0, json_character))


def _in_form(conversation: Conversation, forms: Forms) -> Conversation:
    if forms.takes_text:
        return conversation
    messages = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in conversation.messages]
    return Conversation(messages=messages, tools=conversation.tools)


def _seconds(template: ChatTemplate, conversation: Conversation, forms: Forms) -> float:
    """The best of a few runs: what else happens on the machine only ever adds."""
    best = float("inf")
    for _ in range(4):
        started = perf_counter()
        template.fill(variables(conversation, forms))
        best = min(best, perf_counter() - started)
    return best
