"""The neutral representation of requests, answers and errors.

Pure data without any wire format: dialects parse into it and render from it, engines encode from it and decode into it.

Rules that keep it lossless:
 R1  A turn holds an ordered list of parts; the order is never normalised.
 R2  `UNSET` is not `None` and not zero: a knob that the client did not send stays UNSET.
 R3  Counts are inclusive: `Usage.prompt_tokens` includes cached ones, `completion_tokens` includes reasoning.
 R4  What a target cannot carry becomes a `Loss` or an `ErrorInfo`, never nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "UNSET",
    "ChatRequest",
    "ErrorInfo",
    "ErrorKind",
    "Event",
    "Finish",
    "FinishReason",
    "Loss",
    "ModelCard",
    "Part",
    "RequestError",
    "Sampling",
    "Text",
    "TextDelta",
    "TokenLogprob",
    "Turn",
    "UnsetType",
    "Usage",
]


class Text(Struct, frozen=True):
    """Plain text of a turn."""

    text: str


Part = Text
"""Every kind of content; images, tool calls and the like join this union as they become supported."""


class Turn(Struct, frozen=True):
    """One message of the conversation, in the client's order."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """All text of the turn, in order, without separator."""
        return "".join(part.text for part in self.parts)


class Sampling(Struct, frozen=True, kw_only=True):
    """How to sample. UNSET means that the engine's or the model's own default holds."""

    temperature: float | UnsetType = UNSET
    top_p: float | UnsetType = UNSET
    top_k: int | UnsetType = UNSET  # 0 or -1: off
    min_p: float | UnsetType = UNSET
    frequency_penalty: float | UnsetType = UNSET
    presence_penalty: float | UnsetType = UNSET
    repetition_penalty: float | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    n: int = 1
    max_tokens: int | UnsetType = UNSET  # completion tokens
    min_tokens: int | UnsetType = UNSET
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # keep the matched stop string in the text
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    top_logprobs: int | None = None  # None: no logprobs; 0: of the chosen token only


class Loss(Struct, frozen=True):
    """Something that the client asked for and that does not reach the engine."""

    field: str
    reason: str


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A conversation to continue."""

    model: str  # as the client wrote it
    turns: tuple[Turn, ...]
    sampling: Sampling = Sampling()
    stream: bool = False
    include_usage: bool = False  # in a stream: a last chunk with the usage
    template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)  # for the chat template
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    user: str | None = None
    losses: tuple[Loss, ...] = ()


class Usage(Struct, gc=False):
    """Token counts of one answer, all choices together; the prompt is counted once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"  # the model's own end
    STOP_SEQUENCE = "stop_sequence"  # a stop string or stop token of the request
    LENGTH = "length"
    ABORT = "abort"  # the engine gave up the request


class TokenLogprob(Struct, frozen=True, gc=False):
    """Log probability of one token, with its alternatives."""

    token: bytes  # the token's exact bytes, which may be a part of a UTF-8 character
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


# Events of an answer: the only thing that output produces and dialects render. All carry the choice's index.


class TextDelta(Struct, gc=False):
    """More text of a choice. `text` may be empty when only logprobs come."""

    choice: int
    text: str
    logprobs: list[TokenLogprob] | None = None


class Finish(Struct, gc=False):
    """The end of a choice, exactly once for each."""

    choice: int
    reason: FinishReason
    stop_sequence: str | None = None  # the stop string that matched


Event = TextDelta | Finish


class ErrorKind(Enum):
    """The closed set of errors that a client may see. Dialects map each to their status and type."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported"  # a field or value that is not supported; `param` names it
    CONTEXT_LENGTH = "context_length"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"  # no such URL
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    RATE_LIMIT = "rate_limit"
    SERVER = "server"
    UNIMPLEMENTED = "unimplemented"
    BAD_GATEWAY = "bad_gateway"  # the engine broke its protocol or its stream
    UNAVAILABLE = "unavailable"  # no worker can serve this now
    TIMEOUT = "timeout"


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """An error for the client, without any dialect's form."""

    kind: ErrorKind
    message: str
    param: str | None = None  # the request's field, as a path such as `messages[0].role`
    code: str | None = None  # a finer code than the kind's own, in OpenAI's vocabulary
    retry_after_s: float | None = None
    should_retry: bool | None = None  # where the client's own rule, by status, would be wrong
    allow: str | None = None  # for METHOD_NOT_ALLOWED: the methods that work


class RequestError(Exception):
    """Raised on the request's way, where it is rejected."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.info = info


class ModelCard(Struct, frozen=True):
    """A model as clients see it listed."""

    id: str
    created_s: int  # seconds since the epoch
    owned_by: str = "llm-extproc"
    context_tokens: int | None = None
