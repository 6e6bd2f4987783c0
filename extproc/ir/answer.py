"""What answers consist of: events, the only thing that output produces and dialects render, counts, and vectors.

All events carry the choice's index.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from extproc.ir.conversation import Opaque


class Usage(Struct, gc=False):
    """Token counts of one answer, all choices together; the prompt is counted once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class Embedding(Struct, frozen=True, gc=False):
    """The vector of one text."""

    packed: bytes  # float32, little-endian
    prompt_tokens: int

    @classmethod
    def of(cls, values: Sequence[float], prompt_tokens: int) -> Embedding:
        """From numbers."""
        packed = array("f", values)
        if sys.byteorder == "big":
            packed.byteswap()
        return cls(packed.tobytes(), prompt_tokens)

    def values(self) -> list[float]:
        """The numbers, each as a short decimal fraction that is the same float32: half the JSON of a double's."""
        values = array("f", self.packed)
        if sys.byteorder == "big":
            values.byteswap()
        return [float(f"{value:.9g}") for value in values]


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"  # the model's own end
    STOP_SEQUENCE = "stop_sequence"  # a stop string or stop token of the request
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"  # the model waits for the results of its calls
    CONTENT_FILTER = "content_filter"
    REFUSAL = "refusal"
    ABORT = "abort"  # the engine gave up the request


class TokenLogprob(Struct, frozen=True, gc=False):
    """Log probability of one token, with its alternatives."""

    token: bytes  # the token's exact bytes, which may be a part of a UTF-8 character
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class TextDelta(Struct, gc=False):
    """More text of a choice. `text` may be empty when only logprobs come."""

    choice: int
    text: str
    logprobs: list[TokenLogprob] | None = None


class ReasoningDelta(Struct, gc=False):
    """More reasoning of a choice."""

    choice: int
    text: str
    summary: bool = False  # it is a part of a summary, not of the reasoning itself


class RefusalDelta(Struct, gc=False):
    """More of the model's words for not answering."""

    choice: int
    text: str


class OpaqueDelta(Struct, gc=False):
    """A whole blob that belongs to the part which is open, or which came last."""

    choice: int
    opaque: Opaque


class ToolCallStart(Struct, gc=False):
    """A tool call begins."""

    choice: int
    index: int  # from 0 on in each choice
    call_id: str
    name: str
    custom: bool = False


class ToolArgsDelta(Struct, gc=False):
    """More of the open call's arguments."""

    choice: int
    index: int
    text: str


class ToolCallEnd(Struct, gc=False):
    """The open call is complete."""

    choice: int
    index: int
    arguments: str  # all deltas together; a JSON object unless the model broke off, or the tool is custom


class Finish(Struct, gc=False):
    """The end of a choice, exactly once for each."""

    choice: int
    reason: FinishReason
    stop_sequence: str | None = None  # the stop string that matched


Event = TextDelta | ReasoningDelta | RefusalDelta | OpaqueDelta | ToolCallStart | ToolArgsDelta | ToolCallEnd | Finish
