"""Gemini: generating, streaming, counting, embedding and models, on Gemini's and Vertex AI's paths."""

from __future__ import annotations

import msgspec

from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Rendered, Row
from extproc.dialects.gemini_answer import GeminiStream, GeminiWhole
from extproc.dialects.gemini_embed import BATCHES, GeminiEmbed
from extproc.dialects.gemini_errors import JSON_TYPE, STREAMS, error_answer
from extproc.dialects.gemini_models import GeminiModels, is_google
from extproc.dialects.gemini_request import Own, parse_generate
from extproc.dialects.json_body import BodyLimits
from extproc.ir import ChatRequest, Operation

_VERSIONS = ("/v1", "/v1beta", "/v1alpha", "/v1beta1")
_PLACES = ("/models/", "/publishers/*/models/", "/projects/*/locations/*/publishers/*/models/")


class GeminiGenerate:
    """The codec, within given limits."""

    id_prefix = ""
    call_id_prefix = "call_"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_generate(inbound, body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> GeminiStream:
        """A renderer for one streamed answer."""
        own = request.own
        return GeminiStream(request, identity, array=isinstance(own, Own) and own.array)

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> GeminiWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return GeminiWhole(request, identity)


class GeminiCount:
    """The codec of `countTokens`."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        return parse_generate(inbound, body, self._limits, counting=True)

    def render(self, request: ChatRequest, prompt_tokens: int) -> Rendered:
        """The answer."""
        details = [{"modality": "TEXT", "tokenCount": prompt_tokens}]
        body = msgspec.json.encode({"totalTokens": prompt_tokens, "promptTokensDetails": details})
        return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=body)


def gemini(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="gemini",
        rows=_rows(),
        error=error_answer,
        claims=_claims,
        chat=GeminiGenerate(limits),
        count=GeminiCount(limits),
        embed=GeminiEmbed(limits),
        models=GeminiModels(),
    )


def _rows() -> tuple[Row, ...]:
    rows = []
    for version in _VERSIONS:
        for place in _PLACES:
            path = version + place
            # Under /v1 the short path is also OpenAI's and Anthropic's.
            when = is_google if path == "/v1/models/" else None
            rows += [
                Row("POST", path, Operation.GENERATE, ending=":generateContent"),
                Row("POST", path, Operation.GENERATE, ending=STREAMS),
                Row("POST", path, Operation.COUNT_TOKENS, ending=":countTokens"),
                Row("POST", path, Operation.EMBED, ending=":embedContent"),
                Row("POST", path, Operation.EMBED, ending=BATCHES),
                Row("GET", path, Operation.GET_MODEL, when=when),
                Row("GET", path[:-1], Operation.LIST_MODELS, when=when),
            ]
    return tuple(rows)


def _claims(inbound: Inbound) -> bool:
    return inbound.path.startswith(("/v1beta", "/v1alpha")) or is_google(inbound)
