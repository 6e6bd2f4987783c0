"""Anthropic Messages: `POST /v1/messages`, its token counting, and the listing of models."""

from __future__ import annotations

import msgspec

from extproc.dialects.anthropic_answer import MessageStream, MessageWhole
from extproc.dialects.anthropic_errors import JSON_TYPE, error_answer
from extproc.dialects.anthropic_models import AnthropicModels, is_anthropic
from extproc.dialects.anthropic_request import Own, parse_messages
from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Rendered, Row
from extproc.dialects.json_body import BodyLimits
from extproc.ir import ChatRequest, Operation


class AnthropicMessages:
    """The codec, within given limits."""

    id_prefix = "msg_"
    call_id_prefix = "toolu_"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_messages(inbound, body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> MessageStream:
        """A renderer for one streamed answer."""
        own = request.own
        return MessageStream(request, identity, own.request_id if isinstance(own, Own) else None)

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> MessageWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return MessageWhole(request, identity)


class AnthropicCount:
    """The codec of `POST /v1/messages/count_tokens`."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_messages(inbound, body, self._limits, counting=True)

    def render(self, request: ChatRequest, prompt_tokens: int) -> Rendered:
        """The answer."""
        body = msgspec.json.encode({"input_tokens": prompt_tokens})
        return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=body)


def anthropic(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="anthropic",
        rows=(
            Row("POST", "/v1/messages", Operation.GENERATE),
            Row("POST", "/v1/messages/count_tokens", Operation.COUNT_TOKENS),
            Row("GET", "/v1/models", Operation.LIST_MODELS, when=is_anthropic),
            Row("GET", "/v1/models/", Operation.GET_MODEL, when=is_anthropic),
        ),
        error=error_answer,
        claims=_claims,
        request_id_header="request-id",
        chat=AnthropicMessages(limits),
        count=AnthropicCount(limits),
        models=AnthropicModels(),
    )


def _claims(inbound: Inbound) -> bool:
    return inbound.path.startswith("/v1/messages") or "anthropic-version" in inbound.headers
