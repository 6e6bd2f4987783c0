"""OpenAI Completions: `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Row
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_completions_answer import CompletionStream, CompletionWhole
from extproc.dialects.openai_completions_request import parse_completion
from extproc.dialects.openai_errors import error_answer
from extproc.ir import Operation, TextRequest


class OpenAICompletions:
    """The codec, within given limits."""

    id_prefix = "cmpl-"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> TextRequest:
        """Raises RequestError."""
        return parse_completion(body, self._limits)

    def stream(self, request: TextRequest, identity: AnswerIdentity, echoes: Sequence[str]) -> CompletionStream:
        """A renderer for one streamed answer."""
        n = request.sampling.n
        return CompletionStream(
            identity,
            n * len(request.prompts),
            include_usage=request.include_usage,
            echoes=[echo for echo in echoes for _ in range(n)],
        )

    def whole(self, request: TextRequest, identity: AnswerIdentity, echoes: Sequence[str]) -> CompletionWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        n = request.sampling.n
        return CompletionWhole(
            identity,
            len(request.prompts),
            request.best_of or n,
            n,
            logprobs=request.sampling.top_logprobs is not None,
            echoes=echoes,
        )


def openai_completions(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="openai_completions",
        rows=(Row("POST", "/v1/completions", Operation.COMPLETE),),
        error=error_answer,
        text=OpenAICompletions(limits),
    )
