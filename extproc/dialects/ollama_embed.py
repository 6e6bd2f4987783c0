"""Ollama's `/api/embed`, and `/api/embeddings` before it, which takes one prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.base import Inbound, Rendered
from extproc.dialects.field_rules import Losses
from extproc.dialects.json_body import BodyLimits, check_strings, decode, descriptions, free_object
from extproc.dialects.ollama_errors import JSON_TYPE
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_embeddings import MOST_INPUTS
from extproc.dialects.openai_prompts import ALLOWED_PROMPTS, prompts_of
from extproc.ir import Embedding, EmbedRequest

EMBED_PATH = "/api/embed"
EMBEDDINGS_PATH = "/api/embeddings"

_NO_OPTION = "the engine has the options that it was started with"
_STAYS = "models stay loaded"

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]
_Model: TypeAlias = Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]


class _Embed(Struct, forbid_unknown_fields=True):
    model: _Model
    input: Annotated[Raw, ALLOWED_PROMPTS]
    truncate: Annotated[bool | None, "a boolean"] = None
    dimensions: Annotated[Annotated[int, Meta(ge=0)] | None, "an integer of at least 0"] = None
    options: _Anything = UNSET
    keep_alive: _Anything = UNSET


class _Embeddings(Struct, forbid_unknown_fields=True):
    model: _Model
    prompt: Annotated[str, "a string"]
    options: _Anything = UNSET
    keep_alive: _Anything = UNSET


class _Own(Struct, frozen=True):
    """What the answer needs of the request."""

    came_ns: int
    one: bool  # `/api/embeddings`


_EMBED = msgspec.json.Decoder(_Embed)
_EMBEDDINGS = msgspec.json.Decoder(_Embeddings)
_ALLOWED = descriptions(_Embed)
_ALLOWED_ONE = descriptions(_Embeddings)


class OllamaEmbed:
    """The codec, within given limits."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> EmbedRequest:
        """Raises RequestError. A text that is too long is cut unless the client forbids it."""
        came_ns = time.perf_counter_ns()
        limits = self._limits
        check_strings(body, limits)
        losses: Losses = {}
        if inbound.path == EMBEDDINGS_PATH:
            one = decode(_EMBEDDINGS, body, _ALLOWED_ONE)
            _judge(one, losses, limits)
            return EmbedRequest(
                model=one.model, inputs=(one.prompt,), truncate=True, losses=listed(losses), own=_Own(came_ns, True)
            )
        request = decode(_EMBED, body, _ALLOWED)
        _judge(request, losses, limits)
        return EmbedRequest(
            model=request.model,
            inputs=prompts_of(request.input, "input", limits, most=MOST_INPUTS),
            dimensions=request.dimensions or None,
            truncate=request.truncate is not False,
            losses=listed(losses),
            own=_Own(came_ns, False),
        )

    def render(self, request: EmbedRequest, embeddings: Sequence[Embedding]) -> Rendered:
        """One JSON body."""
        own = request.own
        assert isinstance(own, _Own)
        body: dict[str, Any]
        if own.one:
            body = {"embedding": embeddings[0].values()}
        else:
            body = {
                "model": request.model,
                "embeddings": [each.values() for each in embeddings],
                "total_duration": time.perf_counter_ns() - own.came_ns,
                "load_duration": 0,
                "prompt_eval_count": sum(each.prompt_tokens for each in embeddings),
            }
        return Rendered(200, (("content-type", JSON_TYPE),), msgspec.json.encode(body))


def _judge(request: _Embed | _Embeddings, losses: Losses, limits: BodyLimits) -> None:
    if request.keep_alive is not UNSET and bytes(request.keep_alive) != b"null":
        losses["keep_alive"] = _STAYS
    if request.options is not UNSET and bytes(request.options) != b"null":
        for name in free_object(request.options, "options", limits):
            losses[f"options.{name}"] = _NO_OPTION
