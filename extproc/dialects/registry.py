"""All client dialects, in the order in which they are asked."""

from __future__ import annotations

from extproc.dialects.anthropic import anthropic
from extproc.dialects.base import Dialect
from extproc.dialects.gemini import gemini
from extproc.dialects.gemini_interactions import gemini_interactions
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.ollama import ollama
from extproc.dialects.openai_chat import openai_chat
from extproc.dialects.openai_completions import openai_completions
from extproc.dialects.openai_embeddings import openai_embeddings
from extproc.dialects.openai_models import openai_models
from extproc.dialects.openai_responses import openai_responses
from extproc.dialects.vllm_tokenize import vllm_tokenize


def all_dialects(limits: BodyLimits) -> tuple[Dialect, ...]:
    """Those of the first answer whom no other claims. Of rows with the same path the ones with `when` come first."""
    return (
        openai_chat(limits),
        openai_responses(limits),
        openai_completions(limits),
        openai_embeddings(limits),
        anthropic(limits),
        gemini_interactions(limits),
        gemini(limits),
        ollama(limits),
        openai_models(),
        vllm_tokenize(),
    )
