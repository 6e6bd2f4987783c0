"""Ollama: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`, and what it lists."""

from __future__ import annotations

from extproc.dialects.base import AnswerIdentity, Dialect, Inbound, Row
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.ollama_answer import OllamaStream, OllamaWhole
from extproc.dialects.ollama_embed import EMBED_PATH, EMBEDDINGS_PATH, OllamaEmbed
from extproc.dialects.ollama_errors import error_answer
from extproc.dialects.ollama_models import RUNNING_PATH, VERSION_PATH, OllamaModels
from extproc.dialects.ollama_request import Own, parse_chat, parse_generate
from extproc.ir import ChatRequest, Operation

_CHAT_PATH = "/api/chat"


class OllamaChat:
    """The codec, within given limits."""

    id_prefix = ""
    call_id_prefix = "call_"

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> ChatRequest:
        """Raises RequestError."""
        if inbound.path == _CHAT_PATH:
            return parse_chat(body, self._limits)
        return parse_generate(body, self._limits)

    def stream(self, request: ChatRequest, identity: AnswerIdentity) -> OllamaStream:
        """A renderer for one streamed answer."""
        return OllamaStream(request, identity, chat=_is_chat(request))

    def whole(self, request: ChatRequest, identity: AnswerIdentity) -> OllamaWhole:
        """A renderer for one answer that is not streamed. Its `end` raises RequestError for an incomplete answer."""
        return OllamaWhole(request, identity, chat=_is_chat(request))


def ollama(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="ollama",
        rows=(
            Row("POST", _CHAT_PATH, Operation.GENERATE),
            Row("POST", "/api/generate", Operation.GENERATE),
            Row("POST", EMBED_PATH, Operation.EMBED),
            Row("POST", EMBEDDINGS_PATH, Operation.EMBED),
            Row("GET", "/api/tags", Operation.LIST_MODELS),
            Row("GET", RUNNING_PATH, Operation.LIST_MODELS),
            Row("GET", VERSION_PATH, Operation.LIST_MODELS),
            Row("POST", "/api/show", Operation.GET_MODEL),
        ),
        error=error_answer,
        claims=_claims,
        chat=OllamaChat(limits),
        embed=OllamaEmbed(limits),
        models=OllamaModels(),
    )


def _is_chat(request: ChatRequest) -> bool:
    return isinstance(request.own, Own) and request.own.chat


def _claims(inbound: Inbound) -> bool:
    return inbound.path.startswith("/api/")
