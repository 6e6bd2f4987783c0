"""The neutral representation of requests, answers and errors.

Pure data without any wire format: dialects parse into it and render from it, engines encode from it and decode into it.

Rules that keep it lossless:
 R1  A turn holds an ordered list of parts; the order is never normalised. A user's turn may hold results of tools.
 R2  `UNSET` is not `None` and not zero: a knob that the client did not send stays UNSET.
 R3  Counts are inclusive: `Usage.prompt_tokens` includes cached ones, `completion_tokens` includes reasoning.
 R4  What a target cannot carry becomes a `Loss` or an `ErrorInfo`, never nothing.
 R5  Arguments of tool calls are the JSON text as it was written, valid or not.
 R6  An `Opaque` blob goes back only to who minted it.
 R7  The events of one choice come in the order of the answer's parts: a new kind of delta ends the part before it, and
     at most one tool call is open. Where a server interleaves calls, its decoder puts them in order.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from extproc.ir.answer import (
    Embedding,
    Event,
    Finish,
    FinishReason,
    OpaqueDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from extproc.ir.conversation import (
    Hosted,
    Json,
    Media,
    Opaque,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from extproc.ir.error import (
    ABORTED,
    TRUNCATED,
    ErrorInfo,
    ErrorKind,
    RequestError,
)
from extproc.ir.model_card import (
    ModelCard,
)
from extproc.ir.request import (
    ChatRequest,
    EmbedRequest,
    Loss,
    Operation,
    OutputFormat,
    ReasoningRequest,
    Sampling,
    TextRequest,
    ToolChoice,
    ToolDef,
)

__all__ = [
    "ABORTED",
    "TRUNCATED",
    "UNSET",
    "ChatRequest",
    "EmbedRequest",
    "Embedding",
    "ErrorInfo",
    "ErrorKind",
    "Event",
    "Finish",
    "FinishReason",
    "Hosted",
    "Json",
    "Loss",
    "Media",
    "ModelCard",
    "Opaque",
    "OpaqueDelta",
    "Operation",
    "OutputFormat",
    "Part",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningRequest",
    "Refusal",
    "RefusalDelta",
    "RequestError",
    "Sampling",
    "Text",
    "TextDelta",
    "TextRequest",
    "TokenLogprob",
    "ToolArgsDelta",
    "ToolCall",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolChoice",
    "ToolDef",
    "ToolResult",
    "Turn",
    "UnsetType",
    "Usage",
]
