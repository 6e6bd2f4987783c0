"""OpenAI's model listing: `GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from extproc.dialects.base import Rendered
from extproc.dialects.openai_errors import JSON_TYPE
from extproc.ir import ErrorInfo, ErrorKind, ModelCard, RequestError


class OpenAIModels:
    """The listing of a fixed set of models, rendered once."""

    def __init__(self, cards: Iterable[ModelCard]) -> None:
        listed = {card.id: _card(card) for card in cards}
        self._list = _answer({"object": "list", "data": list(listed.values())})
        self._each = {model: _answer(card) for model, card in listed.items()}

    def list(self) -> Rendered:
        """All models."""
        return self._list

    def get(self, raw_id: str) -> Rendered:
        """One model, by the rest of the path as it came: percent-encoded or not, with any number of slashes.

        Raises RequestError (MODEL_NOT_FOUND).
        """
        model = unquote(raw_id)
        found = self._each.get(model)
        if found is None:
            raise RequestError(
                ErrorInfo(kind=ErrorKind.MODEL_NOT_FOUND, message=f"The model '{model[:256]}' does not exist.")
            )
        return found


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
