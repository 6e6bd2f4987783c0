"""OpenAI's model listing: `GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

from extproc.dialects.base import Dialect, Inbound, Rendered, Row
from extproc.dialects.openai_errors import JSON_TYPE, error_answer
from extproc.ir import ModelCard, Operation


class OpenAIModels:
    """The codec."""

    def list(self, inbound: Inbound, cards: Sequence[ModelCard]) -> Rendered:
        """All models."""
        return _answer({"object": "list", "data": [_card(card) for card in cards]})

    def name(self, inbound: Inbound, body: bytes) -> str:
        """The rest of the path: percent-encoded or not, with any number of slashes."""
        return unquote(inbound.argument)

    def get(self, inbound: Inbound, card: ModelCard) -> Rendered:
        """One model."""
        return _answer(_card(card))


def openai_models() -> Dialect:
    """The dialect."""
    return Dialect(
        name="openai_models",
        rows=(
            Row("GET", "/v1/models", Operation.LIST_MODELS),
            Row("GET", "/v1/models/", Operation.GET_MODEL),
        ),
        error=error_answer,
        models=OpenAIModels(),
    )


def _card(card: ModelCard) -> dict[str, object]:
    listed: dict[str, object] = {
        "id": card.id,
        "object": "model",
        "created": card.created_s,
        "owned_by": card.owned_by,
    }
    if card.context_tokens is not None:
        listed["max_model_len"] = card.context_tokens  # vLLM's addition, which its clients read
    return listed


def _answer(value: dict[str, object]) -> Rendered:
    return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=msgspec.json.encode(value))
