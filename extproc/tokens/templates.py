"""A model's chat templates as requests use them: which one, in which engine, in this process or in a child.

minijinja renders here where it was seen to agree with jinja2 and the conversation is small enough not to hold up the
event loop. Everything else is rendered in a child process: long conversations, templates that only jinja2 renders
rightly, and those that could not be inspected.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from extproc.tokens.conversation import (
    ODD_NUMBER,
    Conversation,
    Forms,
    TemplateError,
    cut_at_tag,
    holds_surrogate,
    variables,
    weigh,
)
from extproc.tokens.template import ChatTemplate, Engine, FastEngineError
from extproc.tokens.template_inspection import Profile
from extproc.tokens.template_process import RenderLimits, TemplateBusyError, TemplateProcesses
from extproc.tokens.tokenizer import InvalidTextError

__all__ = ["ChatTemplates", "RenderLimits", "TemplateBusyError"]

_INLINE_BUDGET_S = 0.002
_INLINE_LIMIT_S = 0.01  # after which no filter or test of ours is run any more
_INLINE_FUEL = 250_000  # steps of minijinja, of 40 to 200 ns: what the estimate missed leaves the loop soon
_log = logging.getLogger(__name__)


class ChatTemplates:
    """All templates of one model. Belongs to one event loop; close it to end its children."""

    def __init__(
        self,
        processes: TemplateProcesses,
        inline: Mapping[str, ChatTemplate],
        profiles: Mapping[str, Profile],
        text: str,
    ) -> None:
        """Use `load`."""
        self.text = text
        """Of all templates."""
        self._processes = processes
        self._inline = inline
        self._profiles = profiles

    @classmethod
    async def load(
        cls,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, Any],
        limits: RenderLimits = RenderLimits(),  # noqa: B008 - immutable
    ) -> ChatTemplates:
        """By name; `default` is needed. Raises TokenizerError where a text is not a template."""
        processes = TemplateProcesses(templates, special_tokens, limits)
        profiles: dict[str, Profile] = {}
        inline: dict[str, ChatTemplate] = {}
        try:
            for name, text in templates.items():
                profile = profiles[name] = await processes.inspect(name)
                if profile.difference is None and profile.costs is not None and profile.growth is None:
                    inline[name] = ChatTemplate(
                        text,
                        special_tokens,
                        "minijinja",
                        max_characters=limits.max_characters,
                        fuel=_INLINE_FUEL,
                        max_s=_INLINE_LIMIT_S,
                    )
                engine = _engine(profile)
                why = profile.difference or "the same text as jinja2's of all probes"
                where = f" in a child process ({profile.growth})" if profile.growth else ""
                _log.info("the chat template %r is rendered with %s%s: %s", name, engine, where, why)
            if len(inline) == len(templates):
                await processes.rest()
        except BaseException:
            await processes.aclose()
            raise
        return cls(processes, inline, profiles, "\n".join(templates.values()))

    @property
    def engines(self) -> dict[str, Engine]:
        """The library that renders each template."""
        return {name: _engine(profile) for name, profile in self._profiles.items()}

    def choose(self, tools: bool, documents: bool) -> str:
        """The name of the template for a conversation with or without these, as transformers names them."""
        profiles = self._profiles
        if len(profiles) > 1:
            if tools and "tool_use" in profiles:
                return "tool_use"
            if documents and "rag" in profiles:
                return "rag"
        return "default"

    def forms(self, name: str) -> Forms:
        """What the template of this name handles."""
        return self._profiles[name].forms

    def render(self, conversation: Conversation) -> str | Awaitable[str]:
        """The prompt's text; an awaitable where it is rendered in a child process.

        Raises at once or when awaited: TemplateError, InvalidTextError, TemplateBusyError, TokenizerError.
        """
        name = self.choose(conversation.tools is not None, conversation.documents is not None)
        profile = self._profiles[name]
        values = variables(conversation, profile.forms)
        continues = conversation.continue_final_message
        template = self._inline.get(name)
        if template is None:
            return self._render_in_child(name, _engine(profile), values, continues)
        seconds = _estimate(profile, values)
        if seconds > _INLINE_BUDGET_S:
            # With an odd number jinja2 writes it.
            engine: Engine = "jinja2" if seconds == float("inf") else "minijinja"
            return self._render_in_child(name, engine, values, continues)
        try:
            text = template.fill(values)
        except FastEngineError:  # out of fuel, too
            return self._render_in_child(name, "minijinja", values, continues)
        except TemplateError:
            if profile.refuses_alike:
                raise
            return self._render_in_child(name, "jinja2", values, continues)
        # minijinja puts this for what is not Unicode.
        if "\ufffd" in text and holds_surrogate(values):
            raise InvalidTextError
        return cut_at_tag(text) if continues else text

    async def aclose(self) -> None:
        """End the child processes."""
        await self._processes.aclose()

    async def _render_in_child(self, name: str, engine: Engine, values: dict[str, Any], continues: bool) -> str:
        if holds_surrogate(values):
            raise InvalidTextError
        text = await self._processes.render(name, engine, values)
        return cut_at_tag(text) if continues else text


def _engine(profile: Profile) -> Engine:
    return "minijinja" if profile.difference is None else "jinja2"


def _estimate(profile: Profile, values: dict[str, Any]) -> float:
    """Seconds that minijinja takes; infinite where it must not render this."""
    costs = profile.costs
    assert costs is not None
    characters = json_characters = 0
    messages = values["messages"]
    for message in messages:
        content = message.get("content")
        if type(content) is str:
            characters += len(content)
            if len(message) > 2:
                json_characters += weigh(message) - len(content)
        else:
            json_characters += weigh(message)
    if len(values) > 4 or values["tools"] is not None or values["documents"] is not None:
        json_characters += sum(weigh(value) for key, value in values.items() if key != "messages")
    if json_characters >= ODD_NUMBER:
        return float("inf")
    return costs.estimate(len(messages), characters, json_characters)
