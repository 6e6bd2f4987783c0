"""Anthropic's model listing: `GET /v1/models`, page by page, and `GET /v1/models/{id}`.

The paths are OpenAI's, too. Anthropic's clients always send `anthropic-version`; the key alone tells them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qs, unquote

import msgspec

from extproc.dialects.anthropic_errors import JSON_TYPE
from extproc.dialects.base import Inbound, Rendered
from extproc.dialects.json_body import invalid
from extproc.dialects.timestamps import timestamp
from extproc.ir import ModelCard

_DEFAULT_LIMIT = 20
_MOST = 1000


class AnthropicModels:
    """The codec."""

    def list(self, inbound: Inbound, cards: Sequence[ModelCard]) -> Rendered:
        """A page. Raises RequestError for a query that makes no sense."""
        query = parse_qs(inbound.query)
        limit = _limit(query.get("limit", [""])[-1])
        after, before = (query.get(name, [""])[-1] for name in ("after_id", "before_id"))
        if after and before:
            raise invalid("'before_id' and 'after_id' exclude each other.", "before_id")
        names = [card.id for card in cards]
        if after:
            first = _place(names, after, "after_id") + 1
            page, more = cards[first : first + limit], first + limit < len(cards)
        elif before:
            end = _place(names, before, "before_id")
            page, more = cards[max(0, end - limit) : end], end > limit
        else:
            page, more = cards[:limit], limit < len(cards)
        return _answer(
            {
                "data": [_card(card) for card in page],
                "has_more": more,
                "first_id": page[0].id if page else None,
                "last_id": page[-1].id if page else None,
            }
        )

    def name(self, inbound: Inbound, body: bytes) -> str:
        """The rest of the path: percent-encoded or not, with any number of slashes."""
        return unquote(inbound.argument)

    def get(self, inbound: Inbound, card: ModelCard) -> Rendered:
        """One model."""
        return _answer(_card(card))


def is_anthropic(inbound: Inbound) -> bool:
    """Whether the client is one of Anthropic's."""
    headers = inbound.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "authorization" not in headers)


def _limit(text: str) -> int:
    if not text:
        return _DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MOST):
        raise invalid(f"Invalid value for 'limit': expected an integer from 1 to {_MOST}.", "limit", "invalid_value")
    return int(text)


def _place(names: list[str], name: str, param: str) -> int:
    if name not in names:
        raise invalid(f"'{param}' names {name[:64]!r}, which is no model.", param, "invalid_value")
    return names.index(name)


def _card(card: ModelCard) -> dict[str, object]:
    return {
        "type": "model",
        "id": card.id,
        "display_name": card.id,
        "created_at": timestamp(card.created_s),
        "lifecycle": "active",
        "max_input_tokens": card.context_tokens,
        "max_tokens": card.context_tokens,
    }


def _answer(value: dict[str, object]) -> Rendered:
    return Rendered(status=200, headers=(("content-type", JSON_TYPE),), body=msgspec.json.encode(value))
