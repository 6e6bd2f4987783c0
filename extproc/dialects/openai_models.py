"""OpenAI's model listing: `GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from extproc.dialects.base import Rendered
from extproc.dialects.openai_errors import JSON_TYPE, render_error
from extproc.ir import ErrorInfo, ErrorKind, ModelCard


def list_models(cards: Iterable[ModelCard]) -> Rendered:
    """All models."""
    return _answer({"object": "list", "data": [_card(card) for card in cards]})


def get_model(cards: Iterable[ModelCard], raw_id: str) -> Rendered:
    """One model, by the rest of the path as it came: percent-encoded or not, with any number of slashes."""
    model = unquote(raw_id)
    for card in cards:
        if card.id == model:
            return _answer(_card(card))
    return render_error(model_not_found(model, param=None))


def model_not_found(model: str, param: str | None = "model") -> ErrorInfo:
    """The error for a model that is not served."""
    return ErrorInfo(kind=ErrorKind.MODEL_NOT_FOUND, message=f"The model '{model[:256]}' does not exist.", param=param)


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
