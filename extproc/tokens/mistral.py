"""Prompts of Mistral's models that come with tekken.json and no chat template: their own encoder, `mistral-common`.

Runs in a child process, as templates do: it is another program that takes whatever clients write. What clients write
never becomes a control token.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extproc.tokens.conversation import TemplateError
from extproc.tokens.source import TokenizerError

__all__ = ["MistralEncoder"]

_LONGEST_MESSAGE = 1000


class MistralEncoder:
    """The encoder of one tekken.json."""

    def __init__(self, tekken: Path) -> None:
        """Takes about a second. Raises TokenizerError."""
        try:
            from mistral_common.protocol.instruct.request import ChatCompletionRequest
            from mistral_common.protocol.instruct.validator import ValidationMode
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
        except ImportError:
            raise TokenizerError(
                f"{tekken} needs Mistral's encoder: install the extra `mistral` (pip install 'llm-extproc[mistral]'), "
                "or name a chat template file for this pool"
            ) from None
        try:
            self._tokenizer = MistralTokenizer.from_file(str(tekken), mode=ValidationMode.test)
        except Exception as error:  # pydantic's, its own, and whatever a wrong file leads to
            raise TokenizerError(f"{tekken} cannot be loaded: {error}") from error
        self._read = ChatCompletionRequest.from_openai

    def encode(self, variables: Mapping[str, Any]) -> bytes:
        """The ids as uint32, little-endian, of a conversation as templates get it. Raises TemplateError."""
        given = dict(variables)
        messages, continues = given.pop("messages"), given.pop("continue_final_message")
        begins, tools, _ = given.pop("add_generation_prompt"), given.pop("tools"), given.pop("documents")
        if not begins and not continues:
            raise TemplateError("this model's prompts always begin the answer: leave add_generation_prompt at true")
        for message in messages:
            _check_text(message)
        try:
            request = self._read(messages, tools=tools, continue_final_message=continues, **given)
            ids = array("I", self._tokenizer.encode_chat_completion(request).tokens)
        except Exception as error:
            # It raises its own errors, pydantic's, and what wrong types lead to: it does not take this conversation.
            raise TemplateError(str(error)[:_LONGEST_MESSAGE] or type(error).__name__) from error
        if sys.byteorder == "big":
            ids.byteswap()
        return ids.tobytes()


def _check_text(message: Mapping[str, Any]) -> None:
    """Other parts than text are refused here: the encoder would fetch images from where their addresses point."""
    content = message.get("content")
    if isinstance(content, list) and not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        raise TemplateError("only parts of type text are supported")
