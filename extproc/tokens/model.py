"""Everything about one model's tokens: conversation to ids, ids to text, and what its folder says about its limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from extproc.ir import ChatRequest, ErrorInfo, ErrorKind, RequestError, Turn
from extproc.tokens.detokenizer import Detokenizer, DetokenizerTable
from extproc.tokens.source import TokenizerError, locate_tokenizer, read_json_object
from extproc.tokens.template import ChatTemplate, TemplateError, find_special_tokens, find_template
from extproc.tokens.tokenizer import InvalidTextError, Tokenizer

__all__ = ["ModelTokens", "Prompt"]

_log = logging.getLogger(__name__)

_RESERVED_KWARGS = frozenset(
    {
        "chat_template",
        "messages",
        "conversation",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "return_dict",
        "return_tensors",
    }
)
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


class Prompt(Struct, frozen=True, gc=False):
    """A rendered and encoded conversation."""

    ids: Sequence[int]  # a list, or an array of uint32
    text_length: int  # characters of the rendered text


class ModelTokens:
    """One model's template, tokenizer and detokenizing table. Belongs to one event loop; close it when done."""

    def __init__(self, folder: Path | None, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """Use `load`."""
        self._tokenizer = tokenizer
        self._template = template
        self._table = DetokenizerTable(tokenizer.inspection.table)
        config = {} if folder is None else read_json_object(folder / "config.json")
        self.context_tokens = _context_tokens(config)
        """Prompt and answer together, as config.json tells; None where it does not."""
        self.vocab_size = max(self._table.size, _positive(_with_text_config(config, "vocab_size")) or 0)
        """One more than the highest id that the model knows, the padding of its embedding included."""
        self.eos_ids = _eos_ids(folder, config, tokenizer.inspection.added_ids)
        """Ids that end an answer."""

    @classmethod
    async def load(cls, path: Path, template_override: Path | None = None) -> ModelTokens:
        """From a model's folder, or a single tokenizer.json with a chat template file. Raises TokenizerError."""
        folder, template = await asyncio.to_thread(_load_template, path, template_override)
        tokenizer = await Tokenizer.load(path)
        try:
            model = await asyncio.to_thread(cls, folder, tokenizer, template)
        except BaseException:
            await tokenizer.aclose()
            raise
        if not model._table.streams:
            _log.warning("the decoder of %s cannot be streamed: text comes at the end of each answer", path)
        return model

    @property
    def serves_with(self) -> str:
        """The library that encodes most texts: `fastokens` or `tokenizers`."""
        return self._tokenizer.serves_with

    @property
    def longest_token_bytes(self) -> int:
        """The most that one token stands for; 0 where that bounds nothing."""
        return self._table.longest_bytes

    def prompt(self, request: ChatRequest) -> Prompt | Awaitable[Prompt]:
        """Render and encode. An awaitable only where encoding would stall the event loop.

        Raises RequestError, at once or when awaited.
        """
        text = self._render(request)
        try:
            ids = self._tokenizer.encode(text)
        except InvalidTextError as error:
            raise _refused(str(error)) from error
        if ids is None:
            return self._prompt_async(text)
        return Prompt(ids, len(text))

    def detokenizer(self, skip_special_tokens: bool) -> Detokenizer:
        """A new one, for one choice of one answer."""
        return self._table.detokenizer(skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, which may be a part of a UTF-8 character; empty for an unknown id."""
        return self._table.token_bytes(token_id)

    async def aclose(self) -> None:
        """End the tokenizer's child process and threads."""
        await self._tokenizer.aclose()

    async def _prompt_async(self, text: str) -> Prompt:
        try:
            return Prompt(await self._tokenizer.encode_async(text), len(text))
        except InvalidTextError as error:
            raise _refused(str(error)) from error
        except TokenizerError as error:
            _log.error("cannot encode a prompt: %s", error)
            raise RequestError(
                ErrorInfo(kind=ErrorKind.SERVER, message="The prompt could not be tokenized.")
            ) from error

    def _render(self, request: ChatRequest) -> str:
        kwargs = request.template_kwargs
        for name in kwargs:
            if name in _RESERVED_KWARGS:
                message = f"{name!r} cannot be set through chat_template_kwargs."
                raise _refused(message, f"chat_template_kwargs.{name}")
        template = self._template
        try:
            return template.render(
                [self._message(turn) for turn in request.turns],
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                kwargs=kwargs,
            )
        except TemplateError as error:
            raise _refused(str(error)) from error

    def _message(self, turn: Turn) -> dict[str, Any]:
        template = self._template
        role = "system" if turn.role == "developer" and not template.knows_developer else turn.role
        parts = turn.parts
        content: str | list[dict[str, str]]
        if template.takes_text and (len(parts) == 1 or not template.takes_parts):
            # Engines join the parts for such templates with line breaks, too.
            content = "\n".join([part.text for part in parts])
        else:
            content = [{"type": "text", "text": part.text} for part in parts]
        message: dict[str, Any] = {"role": role, "content": content}
        if turn.name is not None:
            message["name"] = turn.name
        return message


def _load_template(path: Path, override: Path | None) -> tuple[Path | None, ChatTemplate]:
    """The folder, None for a single file, and its template."""
    folder = None if locate_tokenizer(path) == path else path
    return folder, ChatTemplate(find_template(folder, override)["default"], find_special_tokens(folder))


def _refused(message: str, param: str = "messages") -> RequestError:
    return RequestError(ErrorInfo(kind=ErrorKind.INVALID_REQUEST, message=message, param=param))


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_text_config(config: dict[str, Any], key: str) -> Any:
    """A key of config.json, or of the language model's part in it where the model knows more than text."""
    if key in config:
        return config[key]
    inner = config.get("text_config")
    return inner.get(key) if isinstance(inner, dict) else None


def _context_tokens(config: dict[str, Any]) -> int | None:
    for key in _CONTEXT_KEYS:
        value = _positive(_with_text_config(config, key))
        if value is not None:
            return value
    return None


def _eos_ids(folder: Path | None, config: dict[str, Any], added_ids: dict[str, int]) -> frozenset[int]:
    if folder is None:
        return frozenset()
    generation = read_json_object(folder / "generation_config.json")
    for value in (generation.get("eos_token_id"), _with_text_config(config, "eos_token_id")):
        ids = value if isinstance(value, list) else [value]
        known = [one for one in ids if isinstance(one, int) and not isinstance(one, bool) and one >= 0]
        if known:
            return frozenset(known)
    named = added_ids.get(find_special_tokens(folder).get("eos_token", ""))
    return frozenset() if named is None else frozenset({named})
