"""Gemini's model listing: `GET /v1beta/models`, page by page, and `GET /v1beta/models/{id}`.

Under `/v1` the paths are others', too. Google's clients send `x-goog-api-key` or `?key=`, and say who they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs

import msgspec

from extproc.dialects.base import Inbound, Rendered
from extproc.dialects.gemini_errors import JSON_TYPE
from extproc.dialects.gemini_request import model_of
from extproc.dialects.json_body import invalid
from extproc.ir import ModelCard

_DEFAULT_SIZE = 50
_MOST = 1000
_METHODS = ("generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents")


class GeminiModels:
    """The codec."""

    def list(self, inbound: Inbound, cards: Sequence[ModelCard]) -> Rendered:
        """A page. Raises RequestError for a query that makes no sense."""
        query = parse_qs(inbound.query)
        size = _size(_last(query, "pageSize", "page_size"))
        token = _last(query, "pageToken", "page_token")
        names = [card.id for card in cards]
        if token and token not in names:
            raise invalid("'pageToken' is none of a page before.", "pageToken", "invalid_value")
        first = names.index(token) if token else 0
        page: dict[str, object] = {"models": [_card(card) for card in cards[first : first + size]]}
        if first + size < len(cards):
            page["nextPageToken"] = names[first + size]
        return _answer(page)

    def name(self, inbound: Inbound, body: bytes) -> str:
        """The rest of the path: percent-encoded or not, with any number of slashes."""
        return model_of(inbound)

    def get(self, inbound: Inbound, card: ModelCard) -> Rendered:
        """One model."""
        return _answer(_card(card))


def is_google(inbound: Inbound) -> bool:
    """Whether the client is one of Google's."""
    headers = inbound.headers
    return (
        "x-goog-api-key" in headers
        or "x-goog-api-client" in headers
        or ("key=" in inbound.query and "key" in parse_qs(inbound.query))
    )


def _last(query: dict[str, list[str]], *names: str) -> str:
    return next((query[name][-1] for name in names if name in query), "")


def _size(text: str) -> int:
    if not text:
        return _DEFAULT_SIZE
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise invalid("Invalid value for 'pageSize': expected an integer of at least 0.", "pageSize", "invalid_value")
    return min(int(text), _MOST) or _DEFAULT_SIZE


def _card(card: ModelCard) -> dict[str, object]:
    listed: dict[str, object] = {
        "name": f"models/{card.id}",
        "baseModelId": card.id,
        "version": "1",
        "displayName": card.id,
        "supportedGenerationMethods": _METHODS,
    }
    if card.context_tokens is not None:
        listed["inputTokenLimit"] = listed["outputTokenLimit"] = card.context_tokens
    return listed


def _answer(value: dict[str, object]) -> Rendered:
    return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=msgspec.json.encode(value))
