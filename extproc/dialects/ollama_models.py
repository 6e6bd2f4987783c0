"""Ollama's listings: `GET /api/tags`, `GET /api/ps` and `POST /api/show`; and `GET /api/version`."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Struct

from extproc import __version__
from extproc.dialects.base import Inbound, Rendered
from extproc.dialects.json_body import decode, descriptions, invalid
from extproc.dialects.ollama_errors import JSON_TYPE
from extproc.dialects.timestamps import timestamp
from extproc.ir import ModelCard

VERSION_PATH = "/api/version"
RUNNING_PATH = "/api/ps"

_NEVER = "2318-01-01T00:00:00Z"  # when a model that stays is unloaded
_FAMILY = "llm"


class _Show(Struct):
    model: Annotated[str | None, "a model's name"] = None
    name: Annotated[str | None, "a model's name"] = None  # as earlier clients have it


_SHOW = msgspec.json.Decoder(_Show)
_ALLOWED = descriptions(_Show)


class OllamaModels:
    """The codec."""

    def list(self, inbound: Inbound, cards: Sequence[ModelCard]) -> Rendered:
        """All models; all of them run."""
        if inbound.path == VERSION_PATH:
            return _answer({"version": __version__})
        listed = [_card(card) for card in cards]
        if inbound.path == RUNNING_PATH:
            for running in listed:
                running |= {"expires_at": _NEVER, "size_vram": 0}
        return _answer({"models": listed})

    def name(self, inbound: Inbound, body: bytes) -> str:
        """Raises RequestError."""
        asked = decode(_SHOW, body, _ALLOWED)
        name = asked.model or asked.name
        if not name:
            raise invalid("Missing required parameter: 'model'.", "model", "missing_required_parameter")
        return name

    def get(self, inbound: Inbound, card: ModelCard) -> Rendered:
        """One model. What it can do beside completing a text is not known here."""
        info: dict[str, object] = {"general.architecture": _FAMILY}
        if card.context_tokens is not None:
            info[f"{_FAMILY}.context_length"] = card.context_tokens
        return _answer(
            {
                "modelfile": "",
                "parameters": "",
                "template": "",
                "details": _details(),
                "model_info": info,
                "capabilities": ["completion"],
                "modified_at": timestamp(card.created_s),
            }
        )


def _card(card: ModelCard) -> dict[str, object]:
    return {
        "name": card.id,
        "model": card.id,
        "modified_at": timestamp(card.created_s),
        "size": 0,  # how large the files are is known to the workers alone
        "digest": sha256(card.id.encode("utf-8", "replace")).hexdigest(),
        "details": _details(),
    }


def _details() -> dict[str, object]:
    return {
        "parent_model": "",
        "format": "",
        "family": _FAMILY,
        "families": [_FAMILY],
        "parameter_size": "",
        "quantization_level": "",
    }


def _answer(value: dict[str, object]) -> Rendered:
    return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=msgspec.json.encode(value))
