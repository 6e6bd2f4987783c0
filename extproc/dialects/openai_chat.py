"""OpenAI Chat Completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from extproc.dialects.base import AnswerIdentity, Rendered
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat_answer import ChatStream, ChatWhole
from extproc.dialects.openai_chat_request import parse_chat
from extproc.dialects.openai_errors import render_error
from extproc.ir import ChatRequest, ErrorInfo


class OpenAIChat:
    """The dialect, within given limits."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_chat(body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> ChatStream:
        """A renderer for one streamed answer."""
        return ChatStream(identity, request.sampling.n, include_usage=request.include_usage)

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> ChatWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return ChatWhole(identity, request.sampling.n, logprobs=request.sampling.top_logprobs is not None)

    def error(self, error: ErrorInfo) -> Rendered:
        """An error answer."""
        return render_error(error)
