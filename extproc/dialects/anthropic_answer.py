"""Answers of Messages: a stream of events around content blocks, or one JSON body.

What clients break on: every event has its name in an `event:` line; blocks are numbered from 0 without a gap, and one
is open at a time; a thinking block has a signature; a message ends with `message_delta` and `message_stop`, also an
empty one; input tokens are counted without the cached ones.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from extproc.dialects.anthropic_errors import JSON_TYPE, error_body
from extproc.dialects.base import AnswerIdentity
from extproc.dialects.opaque_blobs import OWN, write_opaque, write_text
from extproc.dialects.tool_arguments import object_of
from extproc.ir import (
    ABORTED,
    TRUNCATED,
    ChatRequest,
    ErrorInfo,
    Event,
    Finish,
    FinishReason,
    Opaque,
    OpaqueDelta,
    ReasoningDelta,
    RefusalDelta,
    RequestError,
    TextDelta,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

_json = msgspec.json.Encoder().encode

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""May stand anywhere in a stream."""

_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_BLOCK_START = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
_BLOCK_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_DELTA_HEAD = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b'
_DELTA_TAIL = b"}}\n\n"

_TEXT = (b'{"type":"text","text":""}', b'"text_delta","text":')
_THINKING = (b'{"type":"thinking","thinking":"","signature":""}', b'"thinking_delta","thinking":')
_ARGUMENTS = b'"input_json_delta","partial_json":'
_SIGNATURE = b'"signature_delta","signature":'

_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
    FinishReason.REFUSAL: "refusal",
}


class MessageStream:
    """Events of one streamed message.

    Everything of a delta but its text is written once per block; a delta costs one string escape and two copies.
    """

    content_type = "text/event-stream"
    keep_alive = PING

    def __init__(self, request: ChatRequest, identity: AnswerIdentity, request_id: str | None) -> None:
        self._identity = identity
        self._request = request
        self._request_id = request_id
        self._hides = request.reasoning.visibility == "omitted"
        self._open = ""  # the kind of the block that is open, "" where none is
        self._index = -1  # of the block that began last
        self._delta_head = b""  # of its deltas
        self._hidden: list[str] = []  # its text, where the client does not want to see it
        self._refused = False
        self._finish: Finish | None = None
        self._broken = False

    def start(self) -> bytes:
        """The message without its content. How much of the prompt was cached is known at the end only."""
        identity = self._identity
        message = _message(identity, [], {"input_tokens": identity.prompt_tokens, "output_tokens": 0})
        return b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n%b' % (_json(message), PING)

    def events(self, events: list[Event]) -> bytes:
        """After an abort there is nothing but the error."""
        if self._broken:
            return b""
        # Hot: once per token of every stream.
        pieces: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                if event.text:
                    if self._open != "text":
                        self._begin("text", *_TEXT, pieces)
                    pieces += (self._delta_head, _json(event.text), _DELTA_TAIL)
            elif type(event) is ToolArgsDelta:
                if event.text:
                    pieces += (self._delta_head, _json(event.text), _DELTA_TAIL)
            elif type(event) is ReasoningDelta:
                if event.text:
                    self._think(event, pieces)
            else:
                self._rare(event, pieces)
        return b"".join(pieces)

    def end(self, usage: Usage) -> bytes:
        """The last events. A stream without a finish breaks off instead."""
        if self._broken:
            return b""
        finish = self._finish
        if finish is None:
            return self.error(TRUNCATED)
        pieces: list[bytes] = []
        self._close(pieces)
        ending = _ending(finish, self._refused, usage, self._request)
        last = _json({"type": "message_delta", "delta": ending, "usage": _usage(usage)})
        pieces.append(b"event: message_delta\ndata: %b\n\n%b" % (last, _MESSAGE_STOP))
        return b"".join(pieces)

    def error(self, error: ErrorInfo) -> bytes:
        """The last event of a stream that breaks off. The SDKs raise on it."""
        if self._broken:
            return b""
        self._broken = True
        return b"event: error\ndata: %b\n\n" % error_body(error, self._request_id)

    def _think(self, event: ReasoningDelta, pieces: list[bytes]) -> None:
        kind = "summary" if event.summary else "thinking"
        if self._open != kind:
            self._begin(kind, *_THINKING, pieces)
        if self._hides:
            self._hidden.append(event.text)
        else:
            pieces += (self._delta_head, _json(event.text), _DELTA_TAIL)

    def _rare(self, event: Event, pieces: list[bytes]) -> None:
        """What comes once per part."""
        match event:
            case ToolCallStart():
                self._begin("tool", _json(_tool_use(event.call_id, event.name, {})), _ARGUMENTS, pieces)
            case ToolCallEnd():
                self._close(pieces)
            case RefusalDelta():
                self._refused = True
                pieces.append(self.events([TextDelta(event.choice, event.text)]))
            case OpaqueDelta():
                self._blob(event.opaque, pieces)
            case Finish(reason=FinishReason.ABORT):
                pieces.append(self.error(ABORTED))
            case Finish():
                self._finish = event

    def _blob(self, opaque: Opaque, pieces: list[bytes]) -> None:
        """A thinking block ends with its signature; what belongs to another block follows in a block of its own."""
        if self._open in ("thinking", "summary") and not self._hidden:
            self._close(pieces, write_opaque(opaque, "anthropic"))
        else:
            self._begin("redacted", _json(_redacted(opaque)), b"", pieces)

    def _begin(self, kind: str, skeleton: bytes, delta_head: bytes, pieces: list[bytes]) -> None:
        self._close(pieces)
        self._open = kind
        self._index += 1
        self._delta_head = _DELTA_HEAD % (self._index, delta_head)
        pieces.append(_BLOCK_START % (self._index, skeleton))

    def _close(self, pieces: list[bytes], signature: str = OWN) -> None:
        if not self._open:
            return
        if self._open in ("thinking", "summary"):
            if self._hidden:
                signature = write_text("".join(self._hidden))
                self._hidden.clear()
            pieces += (_DELTA_HEAD % (self._index, _SIGNATURE), _json(signature), _DELTA_TAIL)
        self._open = ""
        pieces.append(_BLOCK_STOP % self._index)


class MessageWhole:
    """The one body of a message that is not streamed."""

    content_type = JSON_TYPE

    def __init__(self, request: ChatRequest, identity: AnswerIdentity) -> None:
        self._identity = identity
        self._request = request
        self._blocks: list[dict[str, Any]] = []
        self._open = ""  # the kind of the block that text is added to
        self._texts: list[str] = []  # of that block
        self._refused = False
        self._finish: Finish | None = None

    def events(self, events: list[Event]) -> None:
        """Collect."""
        for event in events:
            match event:
                case TextDelta() | RefusalDelta():
                    self._add("text", event.text)
                    self._refused |= type(event) is RefusalDelta
                case ReasoningDelta():
                    self._add("summary" if event.summary else "thinking", event.text)
                case ToolCallEnd():
                    self._blocks[-1]["input"] = object_of(event.arguments)
                case ToolCallStart():
                    self._close()
                    self._blocks.append(_tool_use(event.call_id, event.name, {}))
                case OpaqueDelta():
                    self._blob(event.opaque)
                case Finish():
                    self._finish = event

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where the answer was aborted or never finished."""
        finish = self._finish
        if finish is None:
            raise RequestError(TRUNCATED)
        if finish.reason is FinishReason.ABORT:
            raise RequestError(ABORTED)
        self._close()
        message = _message(self._identity, self._blocks, _usage(usage))
        return _json(message | _ending(finish, self._refused, usage, self._request))

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._open != kind:
            self._close()
            self._open = kind
        self._texts.append(text)

    def _close(self, signature: str = OWN) -> None:
        kind = self._open
        if not kind:
            return
        text = "".join(self._texts)
        self._open = ""
        self._texts.clear()
        if kind == "text":
            self._blocks.append({"type": "text", "text": text})
            return
        if self._request.reasoning.visibility == "omitted":
            text, signature = "", write_text(text)
        self._blocks.append({"type": "thinking", "thinking": text, "signature": signature})

    def _blob(self, opaque: Opaque) -> None:
        if self._open in ("thinking", "summary") and self._request.reasoning.visibility != "omitted":
            self._close(write_opaque(opaque, "anthropic"))
        else:
            self._close()
            self._blocks.append(_redacted(opaque))


def _message(identity: AnswerIdentity, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": identity.id,
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _tool_use(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _redacted(opaque: Opaque) -> dict[str, Any]:
    return {"type": "redacted_thinking", "data": write_opaque(opaque, "anthropic")}


def _ending(finish: Finish, refused: bool, usage: Usage, request: ChatRequest) -> dict[str, Any]:
    """Why the message ended."""
    sequence = finish.stop_sequence
    reason = "stop_sequence" if sequence is not None else _REASONS.get(finish.reason, "end_turn")
    most = request.sampling.max_tokens
    if reason == "max_tokens" and most is not UNSET and 0 < usage.completion_tokens < most:
        reason = "model_context_window_exceeded"  # it was not the request that allowed no more
    ending: dict[str, Any] = {"stop_reason": reason, "stop_sequence": sequence}
    if reason == "refusal" or (refused and reason == "end_turn"):
        ending["stop_reason"] = "refusal"
        ending["stop_details"] = {"type": "refusal", "category": None, "explanation": None}
    return ending


def _usage(usage: Usage) -> dict[str, Any]:
    """Tokens of the prompt are either read from the cache or counted as input. Engines do not tell what they wrote."""
    counts: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
    if usage.reasoning_tokens:
        counts["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return counts
