"""The `usage` of OpenAI's dialects as engines write it."""

from __future__ import annotations

from msgspec import Struct

from extproc.ir import Usage


class _Details(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class EngineUsage(Struct):
    """As it stands in an answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    reasoning_tokens: int | None = None  # SGLang
    prompt_cache_hit_tokens: int | None = None  # DeepSeek

    def neutral(self) -> Usage:
        """What is absent counts as 0."""
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            max(self.prompt_tokens or 0, 0),
            max(self.completion_tokens or 0, 0),
            max((prompt.cached_tokens if prompt is not None else None) or self.prompt_cache_hit_tokens or 0, 0),
            max((completion.reasoning_tokens if completion is not None else None) or self.reasoning_tokens or 0, 0),
        )
