"""OpenAI Chat Completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Row
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat_answer import ChatStream, ChatWhole
from extproc.dialects.openai_chat_request import parse_chat
from extproc.dialects.openai_errors import error_answer
from extproc.ir import ChatRequest, Operation


class OpenAIChat:
    """The codec, within given limits."""

    id_prefix = "chatcmpl-"
    call_id_prefix = "call_"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_chat(body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> ChatStream:
        """A renderer for one streamed answer."""
        return ChatStream(
            identity,
            request.sampling.n,
            include_usage=request.include_usage,
            show_reasoning=request.reasoning.visibility != "omitted",
        )

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> ChatWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return ChatWhole(
            identity,
            request.sampling.n,
            logprobs=request.sampling.top_logprobs is not None,
            show_reasoning=request.reasoning.visibility != "omitted",
        )


def openai_chat(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="openai_chat",
        rows=(Row("POST", "/v1/chat/completions", Operation.GENERATE),),
        error=error_answer,
        chat=OpenAIChat(limits),
    )
