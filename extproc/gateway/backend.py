"""A pool with what its requests need: engine codec, tokenizer and template, context length."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from extproc.engines.base import Engine
from extproc.gateway.http_target import HttpTarget
from extproc.ir import (
    UNSET,
    ChatRequest,
    ErrorInfo,
    ErrorKind,
    Part,
    RequestError,
    Sampling,
    Text,
    ToolCall,
    ToolResult,
)
from extproc.output.parsers import Parsers, choose_parsers
from extproc.routing.pool import Pool, no_worker
from extproc.tokens.model import ModelTokens

_log = logging.getLogger(__name__)

_MOST_ARGUMENTS = 1 << 20
"""Characters, which are parsed and rendered in about 20 ms."""


class Backend:
    """A pool's rooms together. `tokens` is None until its tokenizer has been loaded.

    Its engines speak a protocol of tokens (`engine`) or OpenAI's dialect over HTTP (`http`).
    """

    __slots__ = (
        "_engine",
        "_parser_names",
        "_tokens",
        "context_tokens",
        "http",
        "parsers",
        "pool",
        "shows_reasoning",
        "switches_reasoning",
    )

    def __init__(
        self,
        pool: Pool,
        engine: Engine | HttpTarget,
        context_tokens: int | None,
        *,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        """`tool_parser` and `reasoning_parser`: a parser's name, `auto` or `none`."""
        self.pool = pool
        self._engine = None if isinstance(engine, HttpTarget) else engine
        self.http = engine if isinstance(engine, HttpTarget) else None
        self.context_tokens = context_tokens
        self.parsers = Parsers()
        """How answers are read, once the chat template is known."""
        self.switches_reasoning = False
        """The chat template can be told whether to reason."""
        self.shows_reasoning = False
        """The chat template has a place for the reasoning of earlier turns."""
        self._parser_names = (tool_parser, reasoning_parser)
        self._tokens: ModelTokens | None = None

    @property
    def engine(self) -> Engine:
        """The codec of a protocol of tokens. Raises RequestError (UNSUPPORTED) where the engines have none."""
        engine = self._engine
        if engine is None:
            raise _not_over_http("This model is served by engines that take no tokens for this.")
        return engine

    @property
    def tokens(self) -> ModelTokens | None:
        """Template and tokenizer; HTTP engines need none."""
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: ModelTokens | None) -> None:
        self._tokens = tokens
        if tokens is None:
            return
        template = tokens.template_text
        self.parsers = choose_parsers(template, *self._parser_names)
        self.shows_reasoning = not template or any(
            word in template for word in ("reasoning_content", "thinking", "reasoning")
        )
        self.switches_reasoning = any(word in template for word in ("thinking", "reasoning_effort"))
        _log.info(
            "pool %s: tool calls are read as %s, reasoning as %s",
            self.pool.name,
            self.parsers.tool or "text",
            self.parsers.reasoning or "text",
        )

    def ready_tokens(self) -> ModelTokens:
        """Raises RequestError (UNAVAILABLE) while the tokenizer is not there yet."""
        tokens = self._tokens
        if tokens is None:
            raise (
                no_worker(self.pool.name)
                if self._engine is not None
                else _not_over_http("This model has no tokenizer here.")
            )
        return tokens

    def check_size(self, chat: ChatRequest) -> None:
        """Raises RequestError (CONTEXT_LENGTH) for a text that no number of tokens within the context can hold.

        Tokenizing tens of megabytes takes hundreds, so what is hopeless is refused before. Also (INVALID_REQUEST) for
        calls whose arguments are too much JSON: templates take them as objects.
        """
        _check_calls(chat)
        context = self.context_tokens
        longest = self.ready_tokens().longest_token_bytes
        if context is None or not longest:
            return
        characters = sum(
            [
                len(part.text) if type(part) is Text else _result_characters(part)
                for turn in chat.turns
                for part in turn.parts
            ]
        )
        if characters > context * longest:
            raise _too_long(context, f"{characters} characters, which is more than they can be")

    def check_length(self, prompt_tokens: int, param: str = "messages") -> None:
        """Raises RequestError (CONTEXT_LENGTH) for a prompt that leaves no room for one token of answer."""
        context = self.context_tokens
        if context is not None and prompt_tokens >= context:
            raise _too_long(context, f"{prompt_tokens} tokens", param)

    def check_text(self, text: str, param: str) -> None:
        """`check_size` for one text. Raises RequestError (CONTEXT_LENGTH)."""
        context = self.context_tokens
        longest = self.ready_tokens().longest_token_bytes
        if context is not None and longest and len(text) > context * longest:
            raise _too_long(context, f"{len(text)} characters, which is more than they can be", param)

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        """Raises RequestError for ids that are no tokens."""
        vocabulary = self.ready_tokens().vocab_size
        if max(ids) >= vocabulary:
            raise _no_token(max(ids), param, vocabulary)

    def check_sampling(self, sampling: Sampling) -> Sampling:
        """The same, with a top_k that leaves every token out of it. Raises RequestError for ids that are no tokens.

        Not every engine looks at them: MLX dies of such an id, and of such a top_k it stops for all its requests.
        """
        vocabulary = self.ready_tokens().vocab_size
        if sampling.logit_bias and max(sampling.logit_bias) >= vocabulary:
            raise _no_token(max(sampling.logit_bias), "logit_bias", vocabulary)
        if sampling.stop_token_ids and max(sampling.stop_token_ids) >= vocabulary:
            raise _no_token(max(sampling.stop_token_ids), "stop_token_ids", vocabulary)
        top_k = sampling.top_k
        if top_k is not UNSET and top_k >= vocabulary:
            return msgspec.structs.replace(sampling, top_k=0)
        return sampling


def _result_characters(part: Part) -> int:
    """Of a tool's result: what else stands beside text may be left out by the chat template."""
    return sum(len(inner.text) for inner in part.parts if type(inner) is Text) if type(part) is ToolResult else 0


def _not_over_http(message: str) -> RequestError:
    return RequestError(
        ErrorInfo(
            kind=ErrorKind.UNSUPPORTED,
            message=message,
            param="model",
            code="unsupported_operation",
        )
    )


def _check_calls(chat: ChatRequest) -> None:
    calls = [part for turn in chat.turns if turn.role == "assistant" for part in turn.parts if type(part) is ToolCall]
    size = sum([len(call.arguments) for call in calls])
    if size > _MOST_ARGUMENTS:
        raise RequestError(
            ErrorInfo(
                kind=ErrorKind.INVALID_REQUEST,
                message=f"The arguments of all tool calls together have {size} characters: at most {_MOST_ARGUMENTS} "
                "are allowed in a conversation.",
                code="string_above_max_length",
            )
        )


def _no_token(token_id: int, field: str, vocabulary: int) -> RequestError:
    return RequestError(
        ErrorInfo(
            kind=ErrorKind.INVALID_REQUEST,
            message=f"Invalid '{field}': there is no token {token_id} among the {vocabulary} of this model.",
            param=field,
            code="invalid_value",
        )
    )


def _too_long(context: int, came_to: str, param: str = "messages") -> RequestError:
    return RequestError(
        ErrorInfo(
            kind=ErrorKind.CONTEXT_LENGTH,
            message=f"This model's maximum context length is {context} tokens, prompt and answer together. "
            f"Your {param} came to {came_to}. Please shorten them.",
            param=param,
            code="context_length_exceeded",
        )
    )
