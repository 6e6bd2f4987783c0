"""Answers of Chat Completions: a stream of chunks, or one JSON body.

What clients break on: the role may come once per choice, and the openers of all choices come first, in index order; a
call's id and name may come once, too (the SDK appends blindly); exactly one finish chunk per choice; no `usage` key
unless asked, else null in every chunk but the last; an error chunk is never followed by `[DONE]`, and a stream that
ends without either looks complete.
"""

from __future__ import annotations

import math

import msgspec

from extproc.dialects.base import AnswerIdentity
from extproc.dialects.openai_errors import JSON_TYPE, error_body
from extproc.ir import (
    ABORTED,
    TRUNCATED,
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
    TokenLogprob,
    ToolArgsDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

_json = msgspec.json.Encoder().encode

_DONE = b"data: [DONE]\n\n"
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.REFUSAL: "stop",
}
_FUNCTION = b'"type":"function","function":{"name":%b,"arguments":%b}'
_LEAST_LOGPROB = -9999.0  # what OpenAI writes for -inf, which JSON does not have


class ChatStream:
    """Chunks of one streamed answer.

    Everything of a chunk but its text is written once per choice; a delta costs one string escape and two copies,
    0.3 us. Reasoning goes out under both names that clients look for.
    """

    content_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def __init__(
        self, identity: AnswerIdentity, choices: int, *, include_usage: bool, show_reasoning: bool = True
    ) -> None:
        self._show_reasoning = show_reasoning
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _json(identity.id),
            identity.created_s,
            _json(identity.model),
        )
        self._include_usage = include_usage
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_heads = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(choices)]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail
        self._unfinished = choices
        self._broken = False
        self._custom = [False] * choices  # the choice's open call is one of a custom tool

    def start(self) -> bytes:
        """The openers of all choices."""
        return b"".join(
            b'%b{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},'
            b'"logprobs":null,"finish_reason":null}%b' % (self._head, index, self._tail)
            for index in range(len(self._text_heads))
        )

    def events(self, events: list[Event]) -> bytes:
        """The chunks of some events. After an abort there is nothing but the error."""
        if self._broken:
            return b""
        # Hot: once per token of every stream.
        chunks: list[bytes] = []
        heads = self._text_heads
        for event in events:
            if type(event) is TextDelta:
                if event.logprobs is None:
                    if event.text:
                        chunks += (heads[event.choice], _json(event.text), self._text_tail)
                else:
                    chunks += (
                        heads[event.choice],
                        _json(event.text),
                        b'},"logprobs":',
                        logprobs_json(event.logprobs),
                        b',"finish_reason":null}',
                        self._tail,
                    )
            elif type(event) is Finish:
                if event.reason is FinishReason.ABORT:
                    chunks.append(self.error(ABORTED))
                    break
                self._unfinished -= 1
                chunks.append(
                    b'%b{"index":%d,"delta":{},"logprobs":null,%b}%b'
                    % (self._head, event.choice, _ending(event), self._tail)
                )
            elif delta := self._delta(event):
                chunks.append(
                    b'%b{"index":%d,"delta":{%b},"logprobs":null,"finish_reason":null}%b'
                    % (self._head, event.choice, delta, self._tail)
                )
        return b"".join(chunks)

    def _delta(self, event: Event) -> bytes:
        """The members of a delta that is not text; empty where there is nothing to say."""
        match event:
            case ReasoningDelta():
                return _reasoning(_json(event.text)) if self._show_reasoning else b""
            case ToolArgsDelta():
                kind = b'"custom":{"input"' if self._custom[event.choice] else b'"function":{"arguments"'
                return b'"tool_calls":[{"index":%d,%b:%b}}]' % (event.index, kind, _json(event.text))
            case ToolCallStart():
                self._custom[event.choice] = event.custom
                kind = _call(event.custom, event.name, "")
                return b'"tool_calls":[{"index":%d,"id":%b,%b}]' % (event.index, _json(event.call_id), kind)
            case RefusalDelta():
                return b'"refusal":' + _json(event.text)
            case OpaqueDelta():
                return _blob(event.opaque) if self._show_reasoning else b""
            case _:
                return b""

    def end(self, usage: Usage) -> bytes:
        """The last chunks. A stream with an unfinished choice breaks off instead."""
        if self._broken:
            return b""
        if self._unfinished:
            return self.error(TRUNCATED)
        if self._include_usage:
            return b'%b],"usage":%b}\n\n%b' % (self._head, _usage_json(usage), _DONE)
        return _DONE

    def error(self, error: ErrorInfo) -> bytes:
        """The last chunk of a stream that breaks off. The SDKs raise on it."""
        if self._broken:
            return b""
        self._broken = True
        return b"data: %b\n\n" % error_body(error)


class _Message:
    """One choice of an answer that is not streamed."""

    __slots__ = ("blobs", "calls", "finish", "logprobs", "reasoning", "refusal", "start", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: list[bytes] = []
        self.blobs: list[bytes] = []
        self.logprobs: list[TokenLogprob] = []
        self.start: ToolCallStart | None = None
        self.finish: Finish | None = None

    def body(self) -> bytes:
        """The message."""
        text = "".join(self.texts)
        says_nothing = not text and (self.calls or self.refusal)
        members = [
            b'"role":"assistant","content":' + (b"null" if says_nothing else _json(text)),
            b'"refusal":' + (_json("".join(self.refusal)) if self.refusal else b"null"),
        ]
        if self.reasoning:
            members.append(_reasoning(_json("".join(self.reasoning))))
        if self.blobs:
            members.append(b",".join(self.blobs))
        if self.calls:
            members.append(b'"tool_calls":[' + b",".join(self.calls) + b"]")
        return b"{" + b",".join(members) + b"}"


class ChatWhole:
    """The one body of an answer that is not streamed."""

    content_type = JSON_TYPE

    def __init__(self, identity: AnswerIdentity, choices: int, *, logprobs: bool, show_reasoning: bool = True) -> None:
        self._identity = identity
        self._messages = [_Message() for _ in range(choices)]
        self._logprobs = logprobs
        self._show_reasoning = show_reasoning

    def events(self, events: list[Event]) -> None:
        """Collect."""
        for event in events:
            message = self._messages[event.choice]
            match event:
                case TextDelta():
                    message.texts.append(event.text)
                    if event.logprobs is not None:
                        message.logprobs += event.logprobs
                case ReasoningDelta():
                    if self._show_reasoning:
                        message.reasoning.append(event.text)
                case RefusalDelta():
                    message.refusal.append(event.text)
                case OpaqueDelta():
                    if self._show_reasoning and (blob := _blob(event.opaque)):
                        message.blobs.append(blob)
                case ToolCallStart():
                    message.start = event
                case ToolCallEnd():
                    start = message.start
                    assert start is not None
                    called = _call(start.custom, start.name, event.arguments)
                    message.calls.append(b'{"id":%b,%b}' % (_json(start.call_id), called))
                case Finish():
                    message.finish = event

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where a choice was aborted or never finished."""
        choices = []
        for index, message in enumerate(self._messages):
            finish = message.finish
            if finish is None:
                raise RequestError(TRUNCATED)
            if finish.reason is FinishReason.ABORT:
                raise RequestError(ABORTED)
            logprobs = logprobs_json(message.logprobs) if self._logprobs else b"null"
            choices.append(
                b'{"index":%d,"message":%b,"logprobs":%b,%b}' % (index, message.body(), logprobs, _ending(finish))
            )
        identity = self._identity
        return b'{"id":%b,"object":"chat.completion","created":%d,"model":%b,"choices":[%b],"usage":%b}' % (
            _json(identity.id),
            identity.created_s,
            _json(identity.model),
            b",".join(choices),
            _usage_json(usage),
        )


def _reasoning(text: bytes) -> bytes:
    return b'"reasoning_content":%b,"reasoning":%b' % (text, text)


def _call(custom: bool, name: str, arguments: str) -> bytes:
    """Type and content of a tool call."""
    form = b'"type":"custom","custom":{"name":%b,"input":%b}' if custom else _FUNCTION
    return form % (_json(name), _json(arguments))


def _blob(opaque: Opaque) -> bytes:
    """Signatures as other gateways hand them out, to come back in the same form; empty for those without one."""
    if opaque.minted_by != "anthropic":
        return b""
    if opaque.kind == "redacted":
        return b'"thinking_blocks":[{"type":"redacted_thinking","data":%b}]' % _json(opaque.data)
    return b'"thinking_blocks":[{"type":"thinking","thinking":"","signature":%b}]' % _json(opaque.data)


def logprobs_json(entries: list[TokenLogprob]) -> bytes:
    """The `logprobs` object of a choice."""
    return _json({"content": logprob_entries(entries)})


def logprob_entries(entries: list[TokenLogprob]) -> list[dict[str, object]]:
    """Each token with its alternatives."""
    return [_entry(entry) | {"top_logprobs": list(map(_entry, entry.top))} for entry in entries]


def _entry(entry: TokenLogprob) -> dict[str, object]:
    return {
        "token": entry.token.decode("utf-8", "replace"),
        "logprob": entry.logprob if math.isfinite(entry.logprob) else _LEAST_LOGPROB,
        "bytes": list(entry.token),
    }


def _ending(finish: Finish) -> bytes:
    """`finish_reason`, and as servers of open models do, the stop string that matched."""
    reason = b'"finish_reason":"%b"' % _REASONS[finish.reason].encode()
    if finish.stop_sequence is not None:
        reason += b',"matched_stop":' + _json(finish.stop_sequence)
    return reason


def _usage_json(usage: Usage) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}'
        % (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            usage.cached_tokens,
            usage.reasoning_tokens,
        )
    )
