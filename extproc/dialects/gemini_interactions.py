"""Gemini's Interactions: `POST /v1/interactions`, of which nothing is stored. Events have their later names."""

from __future__ import annotations

from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Row
from extproc.dialects.gemini_errors import error_answer
from extproc.dialects.gemini_interactions_answer import InteractionStream, InteractionWhole
from extproc.dialects.gemini_interactions_request import parse_interaction
from extproc.dialects.json_body import BodyLimits
from extproc.ir import ChatRequest, Operation

_PATHS = ("/v1/interactions", "/v1beta/interactions")


class GeminiInteractions:
    """The codec, within given limits."""

    id_prefix = ""
    call_id_prefix = "call_"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_interaction(body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> InteractionStream:
        """A renderer for one streamed answer."""
        return InteractionStream(request, identity)

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> InteractionWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return InteractionWhole(request, identity)


def gemini_interactions(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="gemini_interactions",
        rows=tuple([Row("POST", path, Operation.GENERATE) for path in _PATHS]),
        error=error_answer,
        claims=lambda inbound: inbound.path.startswith(_PATHS),
        chat=GeminiInteractions(limits),
    )
