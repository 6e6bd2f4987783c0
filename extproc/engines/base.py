"""What every engine protocol offers: encode a prompt and its sampling, decode the answer's bytes.

Codecs do no I/O, so the same code serves answers that Envoy carries and calls that the processor makes itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from extproc.ir import Embedding, ErrorInfo, FinishReason, OutputFormat, Sampling


class TokenScores(Struct, gc=False):
    """Log probabilities of one generated token: its id, its value, and the alternatives (id, value)."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


class Tokens(Struct, gc=False):
    """New tokens of a choice. `ids` may be empty."""

    choice: int
    ids: Sequence[int]
    scores: list[TokenScores] | None = None


class Ended(Struct, gc=False):
    """The end of a choice as the engine reports it."""

    choice: int
    reason: FinishReason
    stop_string: str | None = None  # the stop string that the engine matched
    stop_token_id: int | None = None


EngineEvent = Tokens | Ended


class EngineRequest(Struct, frozen=True):
    """An HTTP/2 request to an engine."""

    path: str
    body: bytes


class Decoder(Protocol):
    """Bytes of one engine answer, cut anywhere, to events. Counts are cumulative and final after `end`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def finished(self) -> bool:
        """Every choice has ended: the engine has nothing more to say but its status."""
        ...

    def feed(self, data: bytes) -> list[EngineEvent]:
        """Raises ProtocolError on bytes that are not the engine's protocol."""
        ...

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        """The stream's end: None if it ended well, else what went wrong."""
        ...


class VectorDecoder(Protocol):
    """Bytes of one answer to `embed`."""

    vector: Embedding | None  # once it has come

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError on bytes that are not the engine's protocol."""
        ...

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        """The stream's end: None if it ended well, with a vector, else what went wrong."""
        ...


class Engine(Protocol):
    """One engine protocol."""

    name: str

    def generate(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        stream: bool,
        output: OutputFormat | None = None,
    ) -> EngineRequest:
        """`output`: what form the text must have. Raises RequestError where the engine cannot carry what is asked."""
        ...

    def with_rank(self, request: EngineRequest, rank: int) -> EngineRequest:
        """The same request for one data-parallel rank. Raises ValueError where the protocol cannot name one."""
        ...

    def decoder(self, choices: int) -> Decoder:
        """A decoder for one answer to `generate`, streamed or not, with so many choices."""
        ...

    def embed(self, request_id: str, prompt: Sequence[int]) -> EngineRequest:
        """Raises RequestError (UNSUPPORTED) where the protocol has no embeddings."""
        ...

    def vector_decoder(self) -> VectorDecoder:
        """A decoder for one answer to `embed`."""
        ...


class ProtocolError(Exception):
    """The engine sent something that is not its protocol."""
