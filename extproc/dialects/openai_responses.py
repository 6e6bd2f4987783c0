"""OpenAI Responses over HTTP, without a memory: `POST /v1/responses`, and its token counting."""

from __future__ import annotations

import msgspec

from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Rendered, Row
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_errors import JSON_TYPE, error_answer
from extproc.dialects.openai_responses_answer import Own, ResponseStream, ResponseWhole
from extproc.dialects.openai_responses_request import parse_responses
from extproc.ir import ChatRequest, Operation


class OpenAIResponses:
    """The codec, within given limits."""

    id_prefix = "resp_"
    call_id_prefix = "call_"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_responses(body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> ResponseStream:
        """A renderer for one streamed answer."""
        return ResponseStream(identity, _own(request))

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> ResponseWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return ResponseWhole(identity, _own(request))


class ResponsesCount:
    """The codec of `POST /v1/responses/input_tokens`."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_responses(body, self._limits, counting=True)

    def render(self, request: ChatRequest, prompt_tokens: int) -> Rendered:
        """The answer."""
        body = msgspec.json.encode({"object": "response.input_tokens", "input_tokens": prompt_tokens})
        return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=body)


def openai_responses(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="openai_responses",
        rows=(
            Row("POST", "/v1/responses", Operation.GENERATE),
            Row("POST", "/v1/responses/input_tokens", Operation.COUNT_TOKENS),
        ),
        error=error_answer,
        chat=OpenAIResponses(limits),
        count=ResponsesCount(limits),
    )


def _own(request: ChatRequest) -> Own:
    own = request.own
    assert isinstance(own, Own)
    return own
