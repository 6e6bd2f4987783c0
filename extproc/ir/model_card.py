"""Models as clients see them listed."""

from __future__ import annotations

from msgspec import Struct


class ModelCard(Struct, frozen=True):
    """A model as clients see it listed."""

    id: str
    created_s: int  # seconds since the epoch
    owned_by: str = "llm-extproc"
    context_tokens: int | None = None
