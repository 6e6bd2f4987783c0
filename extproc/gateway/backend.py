"""A pool with what its requests need: engine codec, tokenizer and template, context length."""

from __future__ import annotations

from extproc.engines.base import Engine
from extproc.ir import ErrorInfo, ErrorKind, RequestError
from extproc.routing.pool import Pool, no_worker
from extproc.tokens.model import ModelTokens


class Backend:
    """A pool's rooms together. `tokens` is None until its tokenizer has been loaded."""

    __slots__ = ("context_tokens", "engine", "pool", "tokens")

    def __init__(self, pool: Pool, engine: Engine, context_tokens: int | None) -> None:
        self.pool = pool
        self.engine = engine
        self.tokens: ModelTokens | None = None
        self.context_tokens = context_tokens

    def ready_tokens(self) -> ModelTokens:
        """Raises RequestError (UNAVAILABLE) while the tokenizer is not there yet."""
        tokens = self.tokens
        if tokens is None:
            raise no_worker(self.pool.name)
        return tokens

    def check_length(self, prompt_tokens: int) -> None:
        """Raises RequestError (CONTEXT_LENGTH) for a prompt that leaves no room for one token of answer."""
        context = self.context_tokens
        if context is not None and prompt_tokens >= context:
            raise RequestError(
                ErrorInfo(
                    kind=ErrorKind.CONTEXT_LENGTH,
                    message=f"This model's maximum context length is {context} tokens, prompt and answer together. "
                    f"Your messages came to {prompt_tokens} tokens. Please shorten them.",
                    param="messages",
                    code="context_length_exceeded",
                )
            )
