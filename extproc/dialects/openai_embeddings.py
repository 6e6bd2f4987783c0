"""OpenAI Embeddings: `POST /v1/embeddings`. Both SDKs ask for base64 unless told otherwise."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from extproc.dialects.base import Dialect, Inbound, Rendered, Row
from extproc.dialects.field_rules import Losses
from extproc.dialects.json_body import BodyLimits, check_strings, decode, descriptions, unsupported
from extproc.dialects.openai_chat_fields import USER_LOSS
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_errors import JSON_TYPE, error_answer
from extproc.dialects.openai_prompts import ALLOWED_PROMPTS, prompts_of
from extproc.ir import Embedding, EmbedRequest, Operation, RequestError

MOST_INPUTS = 2048
"""OpenAI's limit."""

_Anything: TypeAlias = Annotated[Raw | UnsetType, "another value"]


class _Body(Struct, forbid_unknown_fields=True):
    model: Annotated[Annotated[str, Meta(min_length=1, max_length=512)], "a model's name"]
    input: Annotated[Raw, ALLOWED_PROMPTS]
    dimensions: Annotated[Annotated[int, Meta(ge=1)] | None, "a positive integer"] = None
    encoding_format: Annotated[Literal["float", "base64"] | None, "'float' or 'base64'"] = None
    user: Annotated[str | None, "a string"] = None
    add_special_tokens: Annotated[bool | None, "a boolean"] = None
    truncate_prompt_tokens: _Anything = UNSET


_BODY = msgspec.json.Decoder(_Body)
_ALLOWED = descriptions(_Body)
_OF_OTHERS = frozenset(("messages", "normalize", "embed_dtype", "endianness", "priority", "mm_processor_kwargs"))


class OpenAIEmbeddings:
    """The codec, within given limits."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> EmbedRequest:
        """Raises RequestError."""
        check_strings(body, self._limits)
        request = decode(_BODY, body, _ALLOWED, unknown=_unknown_field)
        if request.truncate_prompt_tokens is not UNSET and bytes(request.truncate_prompt_tokens) != b"null":
            raise unsupported(
                "Unsupported parameter: 'truncate_prompt_tokens' is not supported.", "truncate_prompt_tokens"
            )
        losses: Losses = {} if request.user is None else {"user": USER_LOSS}
        return EmbedRequest(
            model=request.model,
            inputs=prompts_of(request.input, "input", self._limits, most=MOST_INPUTS),
            dimensions=request.dimensions,
            add_special_tokens=request.add_special_tokens is not False,
            user=request.user,
            losses=listed(losses),
            own=request.encoding_format,
        )

    def render(self, request: EmbedRequest, embeddings: Sequence[Embedding]) -> Rendered:
        """One JSON body."""
        in_base64 = request.own == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _base64(each) if in_base64 else each.values()}
            for index, each in enumerate(embeddings)
        ]
        tokens = sum(each.prompt_tokens for each in embeddings)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        body = {"object": "list", "data": data, "model": request.model, "usage": usage}
        return Rendered(200, (("content-type", JSON_TYPE),), msgspec.json.encode(body))


def openai_embeddings(limits: BodyLimits) -> Dialect:
    """The dialect."""
    return Dialect(
        name="openai_embeddings",
        rows=(Row("POST", "/v1/embeddings", Operation.EMBED),),
        error=error_answer,
        embed=OpenAIEmbeddings(limits),
    )


def _base64(embedding: Embedding) -> str:
    return base64.b64encode(embedding.packed).decode()


def _unknown_field(name: str, path: str) -> RequestError | None:
    if path == name and name in _OF_OTHERS:
        return unsupported(f"Unsupported parameter: '{name}' is not supported.", name)
    return None
