"""Answers of Responses: a stream of events around items and their parts, or one JSON body.

What clients break on: `response.created` comes first; an item is added before its events, a part before its deltas;
indices are dense; `sequence_number` counts over the whole stream; an item that is done has the identity of the one
that was added; the last event holds the same items again, for clients send those back. An answer that was cut short
ends with `response.incomplete`, one that failed with `response.failed`.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import Struct

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.opaque_blobs import OWN, write_opaque, write_text
from extproc.dialects.openai_chat_answer import logprob_entries
from extproc.dialects.openai_errors import JSON_TYPE
from extproc.ir import (
    ABORTED,
    TRUNCATED,
    ErrorInfo,
    ErrorKind,
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
_any = msgspec.json.Decoder().decode

_INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}
_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_CODES = {
    ErrorKind.RATE_LIMIT: "rate_limit_exceeded",
    ErrorKind.INVALID_REQUEST: "invalid_prompt",
    ErrorKind.UNSUPPORTED: "invalid_prompt",
    ErrorKind.CONTEXT_LENGTH: "invalid_prompt",
}
"""A closed set; all others are `server_error`."""


class Own(Struct, frozen=True):
    """What the answer needs of the request."""

    echo: dict[str, Any]  # fields that every response object repeats; those of free form as `Raw`
    encrypted: bool = False  # reasoning also as a blob, for clients that keep nothing else of it


class _Kind(Struct, frozen=True):
    """A part, or what a call consists of."""

    item: str  # the type of its item
    delta: bytes  # the name of its events without `response.` and `.delta`
    place: bytes  # the name of its index in the item
    tail: bytes = b""  # of its deltas


_TEXT = _Kind("message", b"output_text", b"content_index", b',"logprobs":[]')
_REFUSAL = _Kind("message", b"refusal", b"content_index")
_REASONING = _Kind("reasoning", b"reasoning_text", b"content_index")
_SUMMARY = _Kind("reasoning", b"reasoning_summary_text", b"summary_index")
_FUNCTION = _Kind("function_call", b"function_call_arguments", b"")
_CUSTOM = _Kind("custom_tool_call", b"custom_tool_call_input", b"")


class ResponseStream:
    """Events of one streamed response.

    Everything of a delta but its text and number is written once per part; a delta costs one string escape, one
    number and two copies.
    """

    __slots__ = (
        "_broken",
        "_echo",
        "_finish",
        "_head",
        "_identity",
        "_item",
        "_kind",
        "_logprobs",
        "_number",
        "_output",
        "_own",
        "_place",
        "_tail",
        "_texts",
    )

    content_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def __init__(self, identity: AnswerIdentity, own: Own) -> None:
        self._identity = identity
        self._own = own
        self._echo = _json(own.echo)[1:-1]
        self._number = 0  # of the next event
        self._output: list[dict[str, Any]] = []  # items that are done
        self._item: dict[str, Any] | None = None  # the one that is not
        self._kind: _Kind | None = None  # of its open part
        self._place = b""  # of that part in its item
        self._head = b""  # of its deltas
        self._tail = b""
        self._texts: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._finish: Finish | None = None
        self._broken = False

    def start(self) -> bytes:
        """The response without its output."""
        pieces: list[bytes] = []
        for name in (b"created", b"in_progress"):
            self._event(pieces, name, b'"response":%b' % self._response("in_progress"))
        return b"".join(pieces)

    def events(self, events: list[Event]) -> bytes:
        """After an abort there is nothing but the failure."""
        if self._broken:
            return b""
        # Hot: once per token of every stream.
        pieces: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                text = event.text
                if event.logprobs is not None:
                    self._scored(event, pieces)
                elif text:
                    if self._kind is not _TEXT:
                        self._begin_part(_TEXT, pieces)
                    number = self._number
                    self._number = number + 1
                    self._texts.append(text)
                    pieces += (self._head, _json(text), self._tail % number)
            elif type(event) is ReasoningDelta:
                if event.text:
                    kind = _SUMMARY if event.summary else _REASONING
                    if self._kind is not kind:
                        self._begin_part(kind, pieces)
                    self._delta(event.text, pieces)
            elif type(event) is ToolArgsDelta:
                if event.text:
                    self._delta(event.text, pieces)
            else:
                self._rare(event, pieces)
        return b"".join(pieces)

    def end(self, usage: Usage) -> bytes:
        """The last events. A stream without a finish fails instead."""
        if self._broken:
            return b""
        if self._finish is None:
            return self.error(TRUNCATED)
        pieces: list[bytes] = []
        incomplete = self.close(pieces)
        name = b"completed" if incomplete is None else b"incomplete"
        self._event(pieces, name, b'"response":%b' % self.body(usage, incomplete))
        return b"".join(pieces)

    def error(self, error: ErrorInfo) -> bytes:
        """The last event of a stream that breaks off."""
        if self._broken:
            return b""
        self._broken = True
        pieces: list[bytes] = []
        self._close_item(pieces, "incomplete")
        failure = _json({"code": _CODES.get(error.kind, "server_error"), "message": error.message})
        self._event(pieces, b"failed", b'"response":%b' % self._response("failed", error=failure))
        return b"".join(pieces)

    def close(self, pieces: list[bytes]) -> str | None:
        """End the item that is open; why the answer is incomplete, if it is. There must be a finish."""
        assert self._finish is not None
        incomplete = _INCOMPLETE.get(self._finish.reason)
        self._close_item(pieces, "completed" if incomplete is None else "incomplete")
        return incomplete

    def body(self, usage: Usage, incomplete: str | None) -> bytes:
        """The whole response at its end."""
        return self._response(
            "completed" if incomplete is None else "incomplete",
            usage=_usage(usage),
            incomplete=b"null" if incomplete is None else b'{"reason":"%b"}' % incomplete.encode(),
        )

    @property
    def finish(self) -> Finish | None:
        """How the answer ended, if it has."""
        return self._finish

    def _response(
        self, status: str, *, error: bytes = b"null", incomplete: bytes = b"null", usage: bytes = b"null"
    ) -> bytes:
        identity = self._identity
        completed = b"%d" % int(time.time()) if status == "completed" else b"null"
        return (
            b'{"id":%b,"object":"response","created_at":%d,"status":"%b","completed_at":%b,"error":%b,'
            b'"incomplete_details":%b,"model":%b,"output":%b,%b,"usage":%b}'
            % (
                _json(identity.id),
                identity.created_s,
                status.encode(),
                completed,
                error,
                incomplete,
                _json(identity.model),
                _json(self._output),
                self._echo,
                usage,
            )
        )

    def _event(self, pieces: list[bytes], name: bytes, fields: bytes) -> None:
        pieces.append(
            b'event: response.%b\ndata: {"type":"response.%b",%b,"sequence_number":%d}\n\n'
            % (name, name, fields, self._number)
        )
        self._number += 1

    def _delta(self, text: str, pieces: list[bytes]) -> None:
        number = self._number
        self._number = number + 1
        self._texts.append(text)
        pieces += (self._head, _json(text), self._tail % number)

    def _scored(self, event: TextDelta, pieces: list[bytes]) -> None:
        """Text with log probabilities, which may come without text."""
        if not event.text and not event.logprobs:
            return
        if self._kind is not _TEXT:
            self._begin_part(_TEXT, pieces)
        entries = logprob_entries(event.logprobs or [])
        self._logprobs += entries
        self._texts.append(event.text)
        pieces += (
            self._head,
            _json(event.text),
            b',"logprobs":%b,"sequence_number":%d}\n\n' % (_json(entries), self._number),
        )
        self._number += 1

    def _rare(self, event: Event, pieces: list[bytes]) -> None:
        """What comes once per part."""
        match event:
            case ToolCallStart():
                self._begin_call(event, pieces)
            case ToolCallEnd():
                if not event.arguments and self._kind is _FUNCTION:
                    self._delta("{}", pieces)
                whole = self._kind is _CUSTOM or _is_json(event.arguments or "{}")
                self._close_item(pieces, "completed" if whole else "incomplete")
            case RefusalDelta():
                if event.text:
                    if self._kind is not _REFUSAL:
                        self._begin_part(_REFUSAL, pieces)
                    self._delta(event.text, pieces)
            case OpaqueDelta():
                self._blob(event.opaque, pieces)
            case Finish(reason=FinishReason.ABORT):
                pieces.append(self.error(ABORTED))
            case Finish():
                self._finish = event

    def _blob(self, opaque: Opaque, pieces: list[bytes]) -> None:
        """Reasoning has one; what comes beside it, or belongs to another item, is an item of its own."""
        item = self._item
        if item is None or item["type"] != "reasoning" or "encrypted_content" in item:
            self._begin_item("reasoning", {"summary": []}, pieces)
            item = self._item
        assert item is not None
        self._close_part(pieces)
        item["encrypted_content"] = write_opaque(opaque, "openai")

    def _begin_call(self, call: ToolCallStart, pieces: list[bytes]) -> None:
        kind, field = (_CUSTOM, "input") if call.custom else (_FUNCTION, "arguments")
        self._begin_item(kind.item, {"call_id": call.call_id, "name": call.name, field: ""}, pieces)
        self._open(kind, b"")

    def _begin_part(self, kind: _Kind, pieces: list[bytes]) -> None:
        item = self._item
        if item is None or item["type"] != kind.item or "encrypted_content" in item:
            fields: dict[str, Any] = {"role": "assistant"} if kind.item == "message" else {"summary": []}
            self._begin_item(kind.item, {**fields, "content": []}, pieces)
            item = self._item
        self._close_part(pieces)
        assert item is not None
        index = len(item["summary" if kind is _SUMMARY else "content"])
        self._open(kind, b'"%b":%d,' % (kind.place, index))
        name = b"reasoning_summary_part.added" if kind is _SUMMARY else b"content_part.added"
        self._event(pieces, name, self._where() + b'"part":%b' % _json(_part(kind, "", [])))

    def _open(self, kind: _Kind, place: bytes) -> None:
        """Prepare for the deltas of a part."""
        self._kind = kind
        self._place = place
        self._head = b'event: response.%b.delta\ndata: {"type":"response.%b.delta",%b"delta":' % (
            kind.delta,
            kind.delta,
            self._where(),
        )
        self._tail = kind.tail + b',"sequence_number":%d}\n\n'

    def _where(self) -> bytes:
        assert self._item is not None
        return b'"item_id":%b,"output_index":%d,%b' % (_json(self._item["id"]), len(self._output), self._place)

    def _begin_item(self, kind: str, fields: dict[str, Any], pieces: list[bytes]) -> None:
        self._close_item(pieces)
        index = len(self._output)
        item_id = f"{_ID_PREFIXES[kind]}_{self._identity.id.partition('_')[2]}_{index}"
        self._item = {"id": item_id, "type": kind, "status": "in_progress", **fields}
        self._event(pieces, b"output_item.added", b'"output_index":%d,"item":%b' % (index, _json(self._item)))

    def _close_part(self, pieces: list[bytes]) -> None:
        kind, item = self._kind, self._item
        if kind is None or item is None:
            return
        text, logprobs = "".join(self._texts), self._logprobs
        self._kind = None
        self._texts, self._logprobs = [], []
        where = self._where()
        done = kind.delta + b".done"
        if kind is _FUNCTION or kind is _CUSTOM:
            field = "arguments" if kind is _FUNCTION else "input"
            item[field] = text
            # OpenAI's SDK of the major version 2 asks for the name there.
            name = b'"name":%b,' % _json(item["name"]) if kind is _FUNCTION else b""
            self._event(pieces, done, where + name + b'"%b":%b' % (field.encode(), _json(text)))
            return
        part = _part(kind, text, logprobs)
        item["summary" if kind is _SUMMARY else "content"].append(part)
        field = "refusal" if kind is _REFUSAL else "text"
        scores = b',"logprobs":%b' % _json(logprobs) if kind is _TEXT else b""
        self._event(pieces, done, where + b'"%b":%b%b' % (field.encode(), _json(text), scores))
        name = b"reasoning_summary_part.done" if kind is _SUMMARY else b"content_part.done"
        self._event(pieces, name, where + b'"part":%b' % _json(part))

    def _close_item(self, pieces: list[bytes], status: str = "completed") -> None:
        self._close_part(pieces)
        item = self._item
        if item is None:
            return
        self._item = None
        item["status"] = status
        if self._own.encrypted and item["type"] == "reasoning" and "encrypted_content" not in item:
            text = "\n".join([part["text"] for part in item["content"]])
            item["encrypted_content"] = write_text(text) if text else OWN
        self._event(pieces, b"output_item.done", b'"output_index":%d,"item":%b' % (len(self._output), _json(item)))
        self._output.append(item)


class ResponseWhole:
    """The one body of a response that is not streamed: what the stream's last event holds."""

    content_type = JSON_TYPE

    def __init__(self, identity: AnswerIdentity, own: Own) -> None:
        self._stream = ResponseStream(identity, own)
        self._aborted = False

    def events(self, events: list[Event]) -> None:
        """Collect."""
        self._aborted |= any(type(event) is Finish and event.reason is FinishReason.ABORT for event in events)
        self._stream.events(events)

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where the answer was aborted or never finished."""
        if self._aborted:
            raise RequestError(ABORTED)
        if self._stream.finish is None:
            raise RequestError(TRUNCATED)
        return self._stream.body(usage, self._stream.close([]))


def _is_json(text: str) -> bool:
    try:
        _any(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _part(kind: _Kind, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    if kind is _TEXT:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    if kind is _REFUSAL:
        return {"type": "refusal", "refusal": text}
    return {"type": "summary_text" if kind is _SUMMARY else "reasoning_text", "text": text}


def _usage(usage: Usage) -> bytes:
    return (
        b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},"output_tokens":%d,'
        b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}'
        % (
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.reasoning_tokens,
            usage.prompt_tokens + usage.completion_tokens,
        )
    )
