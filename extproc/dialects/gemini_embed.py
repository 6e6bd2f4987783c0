"""Gemini's `embedContent` and `batchEmbedContents`, in both cases of names. Google's SDK sends batches alone.

What a vector is for (`taskType`) and a document's title change nothing for an engine that gets a text: they are losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from extproc.dialects.base import Inbound, Rendered
from extproc.dialects.field_rules import Losses
from extproc.dialects.gemini_errors import JSON_TYPE
from extproc.dialects.gemini_json import in_both_cases
from extproc.dialects.gemini_parts import Content, PartReader
from extproc.dialects.gemini_request import model_of
from extproc.dialects.json_body import BodyLimits, check_strings, decode, descriptions, invalid, unsupported
from extproc.dialects.openai_chat_messages import listed
from extproc.dialects.openai_embeddings import MOST_INPUTS
from extproc.ir import Embedding, EmbedRequest, Text

BATCHES = ":batchEmbedContents"

_TEXT_ALONE = "the engine embeds the text alone"

_Text: TypeAlias = Annotated[str | None, "a string"]
_Flag: TypeAlias = Annotated[bool | None, "a boolean"]
_Dimensions: TypeAlias = Annotated[Annotated[int, Meta(ge=1)] | None, "a positive integer"]


@in_both_cases
class _Config(Struct, rename="camel", forbid_unknown_fields=True):
    task_type: _Text = None
    title: _Text = None
    output_dimensionality: _Dimensions = None
    auto_truncate: _Flag = None
    document_ocr: _Flag = None
    audio_track_extraction: _Flag = None


@in_both_cases
class _One(Struct, rename="camel", forbid_unknown_fields=True):
    content: Annotated[Content | None, "an object with parts"] = None
    model: _Text = None  # again; the one in the path counts
    task_type: _Text = None
    title: _Text = None
    output_dimensionality: _Dimensions = None
    auto_truncate: _Flag = None
    embed_content_config: Annotated[_Config | None, "an object"] = None


class _Batch(Struct, forbid_unknown_fields=True):
    requests: Annotated[Annotated[list[_One], Meta(min_length=1)], "a non-empty array of requests"]
    model: _Text = None


class _Own(Struct, frozen=True):
    """What the answer needs of the request."""

    batch: bool


_ONE = msgspec.json.Decoder(_One)
_BATCH = msgspec.json.Decoder(_Batch)
_ALLOWED = descriptions(_One)
_ALLOWED_BATCH = descriptions(_Batch)


class GeminiEmbed:
    """The codec, within given limits."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits

    def parse(self, inbound: Inbound, body: bytes) -> EmbedRequest:
        """Raises RequestError."""
        check_strings(body, self._limits)
        batch = inbound.path.endswith(BATCHES)
        asked = decode(_BATCH, body, _ALLOWED_BATCH).requests if batch else [decode(_ONE, body, _ALLOWED)]
        if len(asked) > MOST_INPUTS:
            raise invalid(f"Too many 'requests': at most {MOST_INPUTS} are allowed.", "requests", "invalid_value")
        losses: Losses = {}
        reader = PartReader(losses, self._limits)
        inputs: list[str | tuple[int, ...]] = []
        dimensions: set[int | None] = set()
        truncates: set[bool] = set()
        for at, one in enumerate(asked):
            path = f"requests[{at}]." if batch else ""
            config = one.embed_content_config or _Config()
            if one.task_type or config.task_type:
                losses["taskType"] = _TEXT_ALONE
            if one.title or config.title:
                losses["title"] = _TEXT_ALONE
            if config.document_ocr or config.audio_track_extraction:
                raise unsupported("Only texts are embedded.", f"{path}embedContentConfig")
            dimensions.add(one.output_dimensionality or config.output_dimensionality)
            truncates.add(bool(one.auto_truncate or config.auto_truncate))
            inputs.append(_text(reader, one.content, f"{path}content"))
        if len(dimensions) > 1 or len(truncates) > 1:
            name = "outputDimensionality" if len(dimensions) > 1 else "autoTruncate"
            raise unsupported(f"'{name}' must be the same for all requests.", f"requests[].{name}", "unsupported_value")
        return EmbedRequest(
            model=model_of(inbound),
            inputs=tuple(inputs),
            dimensions=dimensions.pop(),
            truncate=truncates.pop(),
            losses=listed(losses),
            own=_Own(batch),
        )

    def render(self, request: EmbedRequest, embeddings: Sequence[Embedding]) -> Rendered:
        """One JSON body."""
        vectors = [{"values": each.values()} for each in embeddings]
        batch = isinstance(request.own, _Own) and request.own.batch
        body: dict[str, object] = {"embeddings": vectors} if batch else {"embedding": vectors[0]}
        body["usageMetadata"] = {"promptTokenCount": sum(each.prompt_tokens for each in embeddings)}
        return Rendered(200, (("content-type", JSON_TYPE),), msgspec.json.encode(body))


def _text(reader: PartReader, content: Content | None, path: str) -> str:
    if content is None or not content.parts:
        raise invalid(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")
    texts = []
    for part in reader.parts(content, "user", path):
        if not isinstance(part, Text):
            raise unsupported("Only texts are embedded.", path, "unsupported_value")
        texts.append(part.text)
    return "".join(texts)
