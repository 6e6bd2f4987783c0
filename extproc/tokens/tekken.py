"""Prompts of a model that Mistral's own encoder makes, in a child process: ids at once, without a text between."""

from __future__ import annotations

from pathlib import Path

from extproc.token_ids import TokenIds
from extproc.tokens.conversation import Conversation, Forms, TemplateError, holds_surrogate, variables
from extproc.tokens.template_process import RenderLimits, TemplateProcesses
from extproc.tokens.tokenizer import InvalidTextError

__all__ = ["TekkenPrompts"]

# The encoder reads arguments as JSON text, takes content in both forms, and makes a system message of a developer's.
# Only its newest versions take reasoning, and all others refuse it.
_FORMS = Forms(takes_parts=True, argument_objects=False, takes_reasoning=False, short_call_ids=True)


class TekkenPrompts:
    """Belongs to one event loop; close it to end its child."""

    def __init__(self, processes: TemplateProcesses) -> None:
        """Use `load`."""
        self._processes = processes
        self.forms = _FORMS

    @classmethod
    async def load(cls, tekken: Path, limits: RenderLimits = RenderLimits()) -> TekkenPrompts:  # noqa: B008 - immutable
        """Raises TokenizerError, also where `mistral-common` is not installed."""
        processes = TemplateProcesses({}, {}, limits, tekken)
        try:
            await processes.start_encoder()
        except BaseException:
            await processes.aclose()
            raise
        return cls(processes)

    async def encode(self, conversation: Conversation) -> TokenIds:
        """The ids. Raises TemplateError, InvalidTextError, TemplateBusyError, TokenizerError."""
        plain = conversation if not conversation.continue_final_message else _untagged(conversation)
        if conversation.continue_final_message and conversation.add_generation_prompt:
            raise TemplateError("continue_final_message and add_generation_prompt exclude each other")
        values = variables(plain, _FORMS) | {"continue_final_message": conversation.continue_final_message}
        if holds_surrogate(values):
            raise InvalidTextError
        return TokenIds.from_packed(await self._processes.encode(values))

    async def aclose(self) -> None:
        """End the child process."""
        await self._processes.aclose()


def _untagged(conversation: Conversation) -> Conversation:
    """The encoder continues by itself, without a tag in the text."""
    return Conversation(
        messages=conversation.messages,
        tools=conversation.tools,
        documents=conversation.documents,
        add_generation_prompt=conversation.add_generation_prompt,
        kwargs=conversation.kwargs,
    )
