"""Everything about one model's tokens: conversation to ids, ids to text, and what its folder says about its limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from extproc.ir import ChatRequest, ErrorInfo, ErrorKind, RequestError, Text, Turn
from extproc.token_ids import TokenIds
from extproc.tokens.cache import TokenCache
from extproc.tokens.conversation import Conversation, Forms, TemplateError
from extproc.tokens.conversion import locate
from extproc.tokens.detokenizer import Detokenizer, DetokenizerTable
from extproc.tokens.escaping import Escaper, Marked
from extproc.tokens.messages import messages_of, offered_tools, reasoning_kwargs, tools_of
from extproc.tokens.source import TokenizerError, read_json_object
from extproc.tokens.tekken import TekkenPrompts
from extproc.tokens.template import Engine
from extproc.tokens.template_files import find_special_tokens, find_template
from extproc.tokens.templates import ChatTemplates, TemplateBusyError
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
_END_CHARS = 64
_SAMPLE = ("First question?", "An answer.", "Second question?")
_RENDER_ERRORS = (TemplateError, InvalidTextError, TemplateBusyError, TokenizerError)
_TEKKEN_END = "</s>"
_TEKKEN_MARKERS = "tools [TOOL_CALLS] [THINK]"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


class Prompt(Struct, frozen=True, gc=False):
    """A rendered and encoded conversation."""

    ids: TokenIds
    text_length: int  # characters of the rendered text; 0 where there is none
    end: str = ""  # of that text, for what the answer continues


class ModelTokens:
    """One model's template, tokenizer and detokenizing table. Belongs to one event loop; close it when done."""

    def __init__(self, folder: Path | None, tokenizer: Tokenizer, prompts: ChatTemplates | TekkenPrompts) -> None:
        """Use `load`."""
        self._tokenizer = tokenizer
        self._templates = prompts if isinstance(prompts, ChatTemplates) else None
        self._tekken = prompts if isinstance(prompts, TekkenPrompts) else None
        self._table = DetokenizerTable(tokenizer.inspection.table)
        config = {} if folder is None else read_json_object(folder / "config.json")
        self.context_tokens = _context_tokens(config)
        """Prompt and answer together, as config.json tells; None where it does not."""
        self.vocab_size = max(self._table.size, _positive(_with_text_config(config, "vocab_size")) or 0)
        """One more than the highest id that the model knows, the padding of its embedding included."""
        self.eos_ids = _eos_ids(folder, config, tokenizer.inspection.added_ids)
        """Ids that end an answer."""
        if self._tekken is not None and not self.eos_ids:
            self.eos_ids = frozenset(at for token, at in tokenizer.inspection.added_ids.items() if token == _TEKKEN_END)
        self._shown: dict[tuple[str, ...], frozenset[int]] = {}
        self._escaper: Escaper | None = None
        self._control_ids: frozenset[int] = frozenset()

    @classmethod
    async def load(
        cls,
        path: Path,
        template_override: Path | None = None,
        *,
        cache: TokenCache | None = None,
        converted: Path | None = None,
        special_tokens_in_content: Literal["allow", "escape"] = "allow",
        beside_traffic: bool = False,
    ) -> ModelTokens:
        """From a model's folder, or its tokenizer's file with a chat template file. Raises TokenizerError.

        `cache`: of all models of this process. `converted`: folder for what is made of tokenizers in other forms than
        tokenizer.json. `beside_traffic`: the process serves requests already, and nothing may hold it up.
        """
        located = await locate(path, converted)
        folder = located.folder
        async with AsyncExitStack() as loaded:
            prompts: ChatTemplates | TekkenPrompts
            if located.tekken is not None and template_override is None:
                prompts = await TekkenPrompts.load(located.tekken)
            else:
                named, special_tokens = await asyncio.to_thread(_find_templates, folder, template_override)
                prompts = await ChatTemplates.load(named, special_tokens)
            loaded.push_async_callback(prompts.aclose)
            tokenizer = await Tokenizer.load(located.tokenizer, cache, beside_traffic=beside_traffic)
            loaded.push_async_callback(tokenizer.aclose)
            model = await asyncio.to_thread(cls, folder, tokenizer, prompts)
            if model._tekken is None:
                await model._look_at_sample(special_tokens_in_content == "escape")
            loaded.pop_all()
        if not model._table.streams:
            _log.warning("the decoder of %s cannot be streamed: text comes at the end of each answer", path)
        return model

    @property
    def serves_with(self) -> str:
        """The library that encodes most texts: `fastokens` or `tokenizers`."""
        return self._tokenizer.serves_with

    @property
    def template_engines(self) -> dict[str, Engine]:
        """The library that renders each chat template, by the template's name; empty with Mistral's encoder."""
        return {} if self._templates is None else self._templates.engines

    @property
    def template_text(self) -> str:
        """All chat templates; with Mistral's encoder, the markers that its models write."""
        return _TEKKEN_MARKERS if self._templates is None else self._templates.text

    @property
    def longest_token_bytes(self) -> int:
        """The most that one token stands for; 0 where that bounds nothing."""
        return self._table.longest_bytes

    def prompt(self, request: ChatRequest) -> Prompt | Awaitable[Prompt]:
        """Render and encode. An awaitable only where either would stall the event loop.

        Raises RequestError, at once or when awaited.
        """
        if self._tekken is not None:
            return self._prompt_tekken(self._conversation(request, self._tekken.forms), self._tekken)
        templates = self._templates
        assert templates is not None
        forms = templates.forms(templates.choose(bool(request.tools), bool(request.documents)))
        conversation = self._conversation(request, forms)
        marked = None
        if self._escaper is not None:
            marked = self._mark(self._escaper, conversation)
            if marked is not None:
                conversation = _marked(conversation, marked)
        try:
            text = templates.render(conversation)
        except _RENDER_ERRORS as error:
            raise _not_rendered(error) from error
        if not isinstance(text, str):
            return self._prompt_rendered(text, marked)
        if self._escaper is not None:
            return self._prompt_escaped(text, self._escaper, marked)
        try:
            ids = self._tokenizer.encode(text)
        except InvalidTextError as error:
            raise _refused(str(error)) from error
        if ids is None:
            return self._prompt_async(text)
        return Prompt(ids, len(text), text[-_END_CHARS:])

    async def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        """The ids of a text that is no conversation. Raises RequestError."""
        ids = await self._encode(text, "prompt")
        return self.with_special_tokens(ids) if add_special_tokens else ids

    def with_special_tokens(self, ids: TokenIds) -> TokenIds:
        """With what the tokenizer puts around a text. Raises RequestError (UNSUPPORTED) where that is not all."""
        around = self._tokenizer.inspection.template_ids
        if around is None:
            raise RequestError(
                ErrorInfo(
                    kind=ErrorKind.UNSUPPORTED,
                    message="The special tokens that this tokenizer adds depend on the text, which is not supported. "
                    "Set 'add_special_tokens' to false.",
                    param="add_special_tokens",
                    code="unsupported_value",
                )
            )
        before, after = around
        return TokenIds(TokenIds.of(before).varints + ids.varints + TokenIds.of(after).varints)

    async def token_names(self, ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary writes them; None for an unknown id. Raises RequestError."""
        try:
            return await self._tokenizer.names(ids)
        except TokenizerError as error:
            raise _failed(error) from error

    def detokenizer(self, skip_special_tokens: bool, shown: tuple[str, ...] = ()) -> Detokenizer:
        """A new one, for one choice of one answer. `shown`: special tokens that are not skipped."""
        if not shown:
            return self._table.detokenizer(skip_special_tokens)
        ids = self._shown.get(shown)
        if ids is None:
            added = self._tokenizer.inspection.added_ids
            ids = self._shown[shown] = frozenset(added[token] for token in shown if token in added)
        return self._table.detokenizer(skip_special_tokens, ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, which may be a part of a UTF-8 character; empty for an unknown id."""
        return self._table.token_bytes(token_id)

    async def aclose(self) -> None:
        """End the child processes and the threads."""
        prompts = self._templates or self._tekken
        if prompts is not None:
            await prompts.aclose()
        await self._tokenizer.aclose()

    async def _prompt_tekken(self, conversation: Conversation, tekken: TekkenPrompts) -> Prompt:
        try:
            ids = await tekken.encode(conversation)
        except _RENDER_ERRORS as error:
            raise _not_rendered(error) from error
        return Prompt(ids, 0)

    async def _prompt_rendered(self, rendering: Awaitable[str], marked: Marked | None) -> Prompt:
        try:
            text = await rendering
        except _RENDER_ERRORS as error:
            raise _not_rendered(error) from error
        if self._escaper is not None:
            return await self._prompt_escaped(text, self._escaper, marked)
        return await self._prompt_async(text)

    async def _prompt_async(self, text: str) -> Prompt:
        return Prompt(await self._encode(text, "messages"), len(text), text[-_END_CHARS:])

    async def _encode(self, text: str, param: str) -> TokenIds:
        try:
            return self._tokenizer.encode(text) or await self._tokenizer.encode_async(text)
        except InvalidTextError as error:
            raise _refused(str(error), param) from error
        except TokenizerError as error:
            raise _failed(error) from error

    def _mark(self, escaper: Escaper, conversation: Conversation) -> Marked | None:
        try:
            return escaper.for_request(
                [conversation.messages, conversation.tools, conversation.documents, conversation.kwargs]
            )
        except ValueError as error:
            raise _refused(str(error)) from error

    async def _prompt_escaped(self, text: str, escaper: Escaper, marked: Marked | None) -> Prompt:
        pieces = [text] if marked is None else marked.pieces(text)
        ids = TokenIds(b"".join([(await self._encode(piece, "messages")).varints for piece in pieces]))
        # What is written otherwise may be normalized to a control token, and a model of another kind than BPE may have
        # one in its vocabulary. About 40 ns an id.
        control_ids = self._control_ids
        if sum(at in control_ids for at in ids) > sum(map(escaper.count, pieces)):
            raise _refused("the messages hold text which the tokenizer would turn into a control token")
        return Prompt(ids, len(text), text[-_END_CHARS:])

    async def _look_at_sample(self, escape: bool) -> None:
        """Learn from a rendered conversation where messages begin, and which tokens the template writes."""
        tokenizer = self._tokenizer
        roles: tuple[Literal["user", "assistant"], ...] = ("user", "assistant", "user")
        turns = tuple(Turn(role, (Text(text),)) for role, text in zip(roles, _SAMPLE, strict=True))
        try:
            templates = self._templates
            assert templates is not None
            sample_chat = self._conversation(ChatRequest(model="", turns=turns), templates.forms("default"))
            rendered = templates.render(sample_chat)
            sample = rendered if isinstance(rendered, str) else await rendered
        except TemplateError as error:
            _log.warning("prompts are cached only as a whole: the chat template refuses a conversation: %s", error)
            sample = ""
        markers = tokenizer.cut_like(sample, _SAMPLE)
        _log.info("prompts are cached by message, cut in front of %s", markers or "nothing")
        if escape:
            added = tokenizer.inspection.added_ids
            special = frozenset(tokenizer.inspection.table.special)
            control = {token: at for token, at in added.items() if at in special or token in sample}
            self._escaper = Escaper(control)
            self._control_ids = frozenset(at for token, at in control.items() if len(token) > 1)

    def _conversation(self, request: ChatRequest, forms: Forms) -> Conversation:
        """Raises RequestError."""
        kwargs = request.template_kwargs
        for name in kwargs:
            if name in _RESERVED_KWARGS:
                message = f"{name!r} cannot be set through chat_template_kwargs."
                raise _refused(message, f"chat_template_kwargs.{name}")
        if self._templates is not None and (thinking := reasoning_kwargs(request.reasoning, self._templates.text)):
            kwargs = {**thinking, **kwargs}
        return Conversation(
            messages=messages_of(request.turns, forms),
            tools=tools_of(offered_tools(request)) if request.tools else None,
            documents=list(request.documents) or None,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            kwargs=kwargs,
        )


def _marked(conversation: Conversation, marked: Marked) -> Conversation:
    return Conversation(
        messages=marked.value(conversation.messages),
        tools=marked.value(conversation.tools),
        documents=marked.value(conversation.documents),
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        kwargs=marked.value(conversation.kwargs),
    )


def _find_templates(folder: Path | None, override: Path | None) -> tuple[dict[str, str], dict[str, Any]]:
    """The templates by name, and the special tokens."""
    return find_template(folder, override), find_special_tokens(folder)


def _not_rendered(error: Exception) -> RequestError:
    if isinstance(error, TemplateBusyError):
        message = "Too many conversations wait to be rendered. Try again shortly."
        return RequestError(
            ErrorInfo(kind=ErrorKind.UNAVAILABLE, message=message, code="overloaded", retry_after_s=1.0)
        )
    if isinstance(error, TokenizerError):
        return _failed(error)
    return _refused(str(error))


def _failed(error: TokenizerError) -> RequestError:
    _log.error("cannot encode a prompt: %s", error)
    return RequestError(ErrorInfo(kind=ErrorKind.SERVER, message="The prompt could not be tokenized."))


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
