"""Requests for texts without a chat template: to continue them, and to embed them.

Each text is one call to an engine. One prompt goes to its worker through Envoy, as a conversation does. For several,
and for embeddings, the processor makes the calls itself and answers when all of them have ended: a stream comes whole
then, since an answer of ours cannot be sent in pieces before Envoy 1.37.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from extproc.dialects.base import AnswerIdentity, EmbedCodec, Rendered, TextCodec
from extproc.engines.base import Decoder, VectorDecoder
from extproc.gateway.backend import Backend
from extproc.gateway.engine_calls import EngineCall, EngineCalls
from extproc.gateway.prepared import Prepared
from extproc.ir import (
    Embedding,
    EmbedRequest,
    ErrorInfo,
    ErrorKind,
    Event,
    RequestError,
    Sampling,
    TextRequest,
    Usage,
)
from extproc.output.answer_text import AnswerText
from extproc.routing.facts import RouteFacts
from extproc.token_ids import TokenIds

__all__ = ["FactsOf", "TextJob", "answer_texts", "embed", "prepare_text", "read_texts"]

FactsOf: TypeAlias = Callable[[TokenIds], RouteFacts]
"""A prompt's ids to what policies see of its call."""

_INLINE_BYTES = 32 << 10
"""Larger vectors, all together, are written in a thread: a number takes 0.5 us as a decimal fraction."""

_TEXTS_PER_TURN = 32
"""So many are tokenized before others have the event loop again."""


class TextJob(Struct, frozen=True):
    """A request to continue texts, with all that its calls share."""

    codec: TextCodec
    request: TextRequest
    backend: Backend
    ids: list[TokenIds]  # of each prompt
    echoes: list[str]  # the prompts' texts, where they are to be repeated
    sampling: Sampling  # of the engine
    identity: AnswerIdentity


async def read_texts(codec: TextCodec, request: TextRequest, backend: Backend) -> TextJob:
    """Tokenize and check. Raises RequestError."""
    ids = await _ids(backend, request.prompts, "prompt", add_special_tokens=request.add_special_tokens)
    for each in ids:
        backend.check_length(len(each), "prompt")
    sampling = backend.check_sampling(request.sampling)
    if request.best_of is not None:
        # The likeliest are found by the log probabilities of their tokens.
        sampling = msgspec.structs.replace(sampling, n=request.best_of, top_logprobs=sampling.top_logprobs or 0)
    echoes = [_text(backend, prompt) for prompt in request.prompts] if request.echo else []
    identity = AnswerIdentity(
        codec.id_prefix + os.urandom(16).hex(), int(time.time()), request.model, sum(map(len, ids))
    )
    return TextJob(codec, request, backend, ids, echoes, sampling, identity)


def prepare_text(job: TextJob, facts_of: FactsOf) -> Prepared:
    """The request with its only prompt. Raises RequestError."""
    request, engine, ids = job.request, job.backend.engine, job.ids[0]
    stream = request.stream
    return Prepared(
        job.backend,
        facts_of(ids),
        request.losses,
        engine.generate(job.identity.id, ids, job.sampling, stream=stream, output=request.output),
        engine.decoder(job.sampling.n),
        AnswerText(job.sampling, job.backend.ready_tokens()),
        job.codec.stream(request, job.identity, job.echoes) if stream else None,
        None if stream else job.codec.whole(request, job.identity, job.echoes),
    )


async def answer_texts(job: TextJob, calls: EngineCalls, facts_of: FactsOf) -> tuple[Rendered, Usage]:
    """Continue all prompts. Raises RequestError where any of them fails."""
    request, backend, sampling = job.request, job.backend, job.sampling
    engine = backend.engine
    requests = [
        engine.generate(f"{job.identity.id}-{at}", ids, sampling, stream=False, output=request.output)
        for at, ids in enumerate(job.ids)
    ]
    received = await calls.all(
        backend.pool,
        [
            EngineCall(facts_of(ids), lambda rank, one=one: one if rank is None else engine.with_rank(one, rank))  # type: ignore[misc]
            for one, ids in zip(requests, job.ids, strict=True)
        ],
        lambda at: _Text(engine.decoder(sampling.n), AnswerText(sampling, backend.ready_tokens()), at * sampling.n),
    )
    usage = Usage(
        sum(each.decoder.prompt_tokens for each in received),
        sum(each.decoder.completion_tokens for each in received),
        sum(each.decoder.cached_tokens for each in received),
    )
    events = [event for each in received for event in each.events]
    if request.stream:
        stream = job.codec.stream(request, job.identity, job.echoes)
        body = stream.start() + stream.events(events) + stream.end(usage)
        return Rendered(200, (("content-type", stream.content_type), ("cache-control", "no-cache")), body), usage
    whole = job.codec.whole(request, job.identity, job.echoes)
    whole.events(events)
    return Rendered(200, (("content-type", whole.content_type),), whole.end(usage)), usage


class _Text:
    """A `Receiver` of one prompt's choices, which are counted on from `first_choice`."""

    __slots__ = ("_first_choice", "_text", "decoder", "events")

    def __init__(self, decoder: Decoder, text: AnswerText, first_choice: int) -> None:
        self.decoder = decoder
        self.events: list[Event] = []
        self._text = text
        self._first_choice = first_choice

    def receive(self, frame: bytes) -> bool:
        events = self._text.feed(self.decoder.feed(frame))
        for event in events:
            event.choice += self._first_choice
        self.events += events
        return self._text.finished and not self.decoder.finished

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        return self.decoder.end(trailers)


async def embed(
    codec: EmbedCodec, request: EmbedRequest, backend: Backend, calls: EngineCalls, facts_of: FactsOf
) -> tuple[Rendered, Usage]:
    """The vectors of all texts. Raises RequestError where any of them fails."""
    engine = backend.engine
    name = "embd-" + os.urandom(16).hex()
    ids = await _ids(backend, request.inputs, "input", add_special_tokens=request.add_special_tokens)
    context = backend.context_tokens
    if request.truncate and context is not None:
        ids = [each if len(each) <= context else TokenIds.of(each[:context]) for each in ids]
    for each in ids:
        backend.check_length(len(each) - 1, "input")  # nothing follows
    requests = [engine.embed(f"{name}-{at}", each) for at, each in enumerate(ids)]
    received = await calls.all(
        backend.pool,
        # The protocol names no rank for them.
        [EngineCall(facts_of(each), lambda rank, one=one: one) for one, each in zip(requests, ids, strict=True)],  # type: ignore[misc]
        lambda at: _Vector(engine.vector_decoder()),
    )
    embeddings = [each.embedding() for each in received]
    usage = Usage(sum(each.prompt_tokens for each in embeddings))
    if sum(len(each.packed) for each in embeddings) <= _INLINE_BYTES:
        return _rendered(codec, request, embeddings), usage
    return await asyncio.to_thread(_rendered, codec, request, embeddings), usage


def _rendered(codec: EmbedCodec, request: EmbedRequest, embeddings: list[Embedding]) -> Rendered:
    """Raises RequestError."""
    if request.dimensions is not None:
        embeddings = [_shortened(each, request.dimensions) for each in embeddings]
    return codec.render(request, embeddings)


class _Vector:
    """A `Receiver` of one vector."""

    __slots__ = ("_decoder",)

    def __init__(self, decoder: VectorDecoder) -> None:
        self._decoder = decoder

    def receive(self, frame: bytes) -> bool:
        self._decoder.feed(frame)
        return False

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        return self._decoder.end(trailers)

    def embedding(self) -> Embedding:
        """It has ended well, so there is one."""
        embedding = self._decoder.vector
        assert embedding is not None
        return embedding


def _shortened(embedding: Embedding, dimensions: int) -> Embedding:
    """The first `dimensions`, of length 1 again, as models are trained for it. Raises RequestError for too many."""
    values = embedding.values()
    if dimensions > len(values):
        raise RequestError(
            ErrorInfo(
                kind=ErrorKind.INVALID_REQUEST,
                message=f"Invalid value for 'dimensions': this model's embeddings have {len(values)}.",
                param="dimensions",
                code="invalid_value",
            )
        )
    values = values[:dimensions]
    length = sum(value * value for value in values) ** 0.5 or 1.0
    return Embedding.of([value / length for value in values], embedding.prompt_tokens)


async def _ids(
    backend: Backend, texts: Sequence[str | tuple[int, ...]], param: str, *, add_special_tokens: bool
) -> list[TokenIds]:
    tokens = backend.ready_tokens()
    found: list[TokenIds] = []
    for at, text in enumerate(texts):
        if isinstance(text, str):
            backend.check_text(text, param)
            ids = await tokens.encode(text, add_special_tokens=add_special_tokens)
        else:
            backend.check_ids(text, param)
            ids = TokenIds.of(text)
        if not len(ids):
            raise RequestError(
                ErrorInfo(
                    kind=ErrorKind.INVALID_REQUEST,
                    message=f"Invalid value for '{param}': a text without any token.",
                    param=param,
                    code="invalid_value",
                )
            )
        found.append(ids)
        if at % _TEXTS_PER_TURN == _TEXTS_PER_TURN - 1:
            await asyncio.sleep(0)
    return found


def _text(backend: Backend, prompt: str | tuple[int, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    detokenizer = backend.ready_tokens().detokenizer(skip_special_tokens=True)
    return detokenizer.feed(array("I", prompt)) + detokenizer.finish()
