"""Answers of Interactions: a stream of events around steps, or one JSON body.

Every event has its name also in an `event:` line; steps are numbered from 0 without a gap, and one is open at a time.
Thoughts are shown to who asks for summaries; else their step has a signature that holds them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.gemini_errors import JSON_TYPE, status_name
from extproc.dialects.gemini_signatures import opaque_signature, text_signature
from extproc.dialects.timestamps import timestamp
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

_DONE = b"event: done\ndata: [DONE]\n\n"
_DELTA = b'event: step.delta\ndata: {"event_type":"step.delta","index":%d,"delta":{"type":%b'
_TEXT = b'"text","text":'
_SUMMARY = b'"thought_summary","content":{"type":"text","text":'
_SIGNATURE = b'"thought_signature","signature":'
_ARGUMENTS = b'"arguments_delta","arguments":'
_TAIL = b"}}\n\n"

_STATUSES = {
    FinishReason.STOP: "completed",
    FinishReason.STOP_SEQUENCE: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.TOOL_CALLS: "requires_action",
    FinishReason.CONTENT_FILTER: "failed",
    FinishReason.REFUSAL: "completed",
}


class InteractionStream:
    """Events of one streamed interaction.

    Everything of a delta but its text is written once per step; a delta costs one string escape and two copies.
    """

    content_type = "text/event-stream"
    keep_alive = b": ping\n\n"

    def __init__(self, request: ChatRequest, identity: AnswerIdentity) -> None:
        self._identity = identity
        self._shows = request.reasoning.visibility in ("summary", "full")
        self._open = ""  # the kind of the step that is open, "" where none is
        self._index = -1  # of the step that began last
        self._head = b""  # of its deltas
        self._tail = _TAIL
        self._hidden: list[str] = []  # thoughts that the client does not want to see
        self._called = False
        self._finish: Finish | None = None
        self._broken = False

    def start(self) -> bytes:
        """The interaction without its steps."""
        created = _event("interaction.created", {"interaction": _interaction(self._identity, "in_progress")})
        update = {"interaction_id": self._identity.id, "status": "in_progress"}
        return created + _event("interaction.status_update", update)

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
                        self._begin("text", {"type": "model_output"}, _TEXT, pieces)
                    pieces += (self._head, _json(event.text), _TAIL)
            elif type(event) is ToolArgsDelta:
                if event.text:
                    pieces += (self._head, _json(event.text), _TAIL)
            else:
                self._rare(event, pieces)
        return b"".join(pieces)

    def end(self, usage: Usage) -> bytes:
        """The last events. A stream without a finish breaks off instead."""
        if self._broken:
            return b""
        if self._finish is None:
            return self.error(TRUNCATED)
        pieces: list[bytes] = []
        self._close(pieces)
        last = _interaction(self._identity, _status(self._finish, self._called)) | {"usage": _usage(usage)}
        pieces += (_event("interaction.completed", {"interaction": last}), _DONE)
        return b"".join(pieces)

    def error(self, error: ErrorInfo) -> bytes:
        """The last event of a stream that breaks off."""
        if self._broken:
            return b""
        self._broken = True
        return _event("error", {"error": {"code": status_name(error), "message": error.message}})

    def _rare(self, event: Event, pieces: list[bytes]) -> None:
        match event:
            case ReasoningDelta():
                if event.text:
                    self._think(event.text, pieces)
            case ToolCallStart():
                self._called = True
                step = {"type": "function_call", "id": event.call_id, "name": event.name, "arguments": {}}
                self._begin("call", step, _ARGUMENTS, pieces)
            case ToolCallEnd():
                self._close(pieces)
            case RefusalDelta():
                pieces.append(self.events([TextDelta(event.choice, event.text)]))
            case OpaqueDelta():
                self._sign(event.opaque, pieces)
            case Finish(reason=FinishReason.ABORT):
                pieces.append(self.error(ABORTED))
            case Finish():
                self._finish = event

    def _think(self, text: str, pieces: list[bytes]) -> None:
        if self._open != "thought":
            self._begin("thought", {"type": "thought"}, _SUMMARY, pieces)
        if self._shows:
            pieces += (self._head, _json(text), b"}", _TAIL)
        else:
            self._hidden.append(text)

    def _sign(self, opaque: Opaque, pieces: list[bytes]) -> None:
        """A thought has one signature; what belongs to another step follows in a thought of its own."""
        if self._open != "thought" or self._hidden:
            self._begin("thought", {"type": "thought"}, _SUMMARY, pieces)
        self._close(pieces, opaque_signature(opaque))

    def _begin(self, kind: str, step: dict[str, Any], head: bytes, pieces: list[bytes]) -> None:
        self._close(pieces)
        self._open = kind
        self._index += 1
        self._head = _DELTA % (self._index, head)
        pieces.append(_event("step.start", {"index": self._index, "step": step}))

    def _close(self, pieces: list[bytes], signature: str = "") -> None:
        if not self._open:
            return
        if self._hidden:
            signature = text_signature("".join(self._hidden))
            self._hidden.clear()
        if signature:
            pieces += (_DELTA % (self._index, _SIGNATURE), _json(signature), _TAIL)
        self._open = ""
        pieces.append(_event("step.stop", {"index": self._index}))


class InteractionWhole:
    """The one body of an interaction that is not streamed."""

    content_type = JSON_TYPE

    def __init__(self, request: ChatRequest, identity: AnswerIdentity) -> None:
        self._identity = identity
        self._shows = request.reasoning.visibility in ("summary", "full")
        self._steps: list[dict[str, Any]] = []
        self._open = ""  # the kind of step that text is added to
        self._texts: list[str] = []
        self._called = False
        self._finish: Finish | None = None

    def events(self, events: list[Event]) -> None:
        """Collect."""
        for event in events:
            match event:
                case TextDelta() | RefusalDelta():
                    self._add("text", event.text)
                case ReasoningDelta():
                    self._add("thought", event.text)
                case ToolCallStart():
                    self._close()
                    self._called = True
                    step = {"type": "function_call", "id": event.call_id, "name": event.name, "arguments": {}}
                    self._steps.append(step)
                case ToolCallEnd():
                    self._steps[-1]["arguments"] = object_of(event.arguments)
                case OpaqueDelta():
                    self._sign(event.opaque)
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
        interaction = _interaction(self._identity, _status(finish, self._called))
        return _json(interaction | {"steps": self._steps, "usage": _usage(usage)})

    def _add(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._open != kind:
            self._close()
            self._open = kind
        self._texts.append(text)

    def _sign(self, opaque: Opaque) -> None:
        if self._open != "thought" or not self._shows:
            self._close()
            self._steps.append({"type": "thought"})
        else:
            self._close()
        self._steps[-1]["signature"] = opaque_signature(opaque)

    def _close(self) -> None:
        kind, text = self._open, "".join(self._texts)
        self._open = ""
        self._texts.clear()
        if kind == "text":
            self._steps.append({"type": "model_output", "content": [{"type": "text", "text": text}]})
        elif kind == "thought" and self._shows:
            self._steps.append({"type": "thought", "summary": [{"type": "text", "text": text}]})
        elif kind == "thought":
            self._steps.append({"type": "thought", "signature": text_signature(text)})


def _event(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _json({"event_type": name} | members))


def _interaction(identity: AnswerIdentity, status: str) -> dict[str, Any]:
    created = timestamp(identity.created_s)
    return {
        "id": identity.id,
        "object": "interaction",
        "model": identity.model,
        "status": status,
        "created": created,
        "updated": created,
    }


def _status(finish: Finish, called: bool) -> str:
    status = _STATUSES[finish.reason]
    return "requires_action" if called and status == "completed" else status


def _usage(usage: Usage) -> dict[str, int]:
    """Thoughts are counted by themselves, cached tokens are among the input."""
    return {
        "total_input_tokens": usage.prompt_tokens,
        "total_cached_tokens": usage.cached_tokens,
        "total_output_tokens": max(0, usage.completion_tokens - usage.reasoning_tokens),
        "total_thought_tokens": usage.reasoning_tokens,
        "total_tool_use_tokens": 0,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
