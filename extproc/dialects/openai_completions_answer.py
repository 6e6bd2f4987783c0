"""Answers of Completions: a stream of chunks, or one JSON body. Both have the object `text_completion`.

Choices are counted through, prompt after prompt. A stream ends like one of Chat Completions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    RequestError,
    TextDelta,
    TokenLogprob,
    Usage,
)

_json = msgspec.json.Encoder().encode

_DONE = b"data: [DONE]\n\n"
_REASONS = {
    FinishReason.STOP: b"stop",
    FinishReason.STOP_SEQUENCE: b"stop",
    FinishReason.LENGTH: b"length",
    FinishReason.TOOL_CALLS: b"stop",
    FinishReason.CONTENT_FILTER: b"content_filter",
    FinishReason.REFUSAL: b"stop",
}
_LEAST_LOGPROB = -9999.0  # what OpenAI writes for -inf, which JSON does not have


class CompletionStream:
    """Chunks of one streamed answer; everything of a chunk but its text is written once per choice."""

    content_type = "text/event-stream"
    keep_alive = b": keep-alive\n\n"

    def __init__(
        self, identity: AnswerIdentity, choices: int, *, include_usage: bool, echoes: Sequence[str] = ()
    ) -> None:
        """`echoes`: of each choice what stands before its text; empty without any."""
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            _json(identity.id),
            identity.created_s,
            _json(identity.model),
        )
        self._include_usage = include_usage
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_heads = [self._head + b'{"index":%d,"text":' % index for index in range(choices)]
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail
        self._offsets = [_Offsets(len(echoes[index]) if echoes else 0) for index in range(choices)]
        self._echoes = echoes
        self._unfinished = choices
        self._broken = False

    def start(self) -> bytes:
        """The prompts, where they are repeated."""
        return b"".join(
            head + _json(echo) + self._text_tail for head, echo in zip(self._text_heads, self._echoes, strict=False)
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
                    logprobs = _logprobs_json(event.logprobs, self._offsets[event.choice])
                    chunks += (heads[event.choice], _json(event.text), b',"logprobs":', logprobs)
                    chunks += (b',"finish_reason":null}', self._tail)
            elif type(event) is Finish:
                if event.reason is FinishReason.ABORT:
                    chunks.append(self.error(ABORTED))
                    break
                self._unfinished -= 1
                chunks.append(b'%b"","logprobs":null,%b}%b' % (heads[event.choice], _ending(event), self._tail))
        return b"".join(chunks)

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


class _Choice:
    """One choice of an answer that is not streamed."""

    __slots__ = ("finish", "logprobs", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: Finish | None = None

    @property
    def likelihood(self) -> float:
        """The mean log probability of its tokens."""
        entries = self.logprobs
        return sum([entry.logprob for entry in entries]) / len(entries) if entries else 0.0


class CompletionWhole:
    """The one body of an answer that is not streamed."""

    content_type = JSON_TYPE

    def __init__(
        self,
        identity: AnswerIdentity,
        prompts: int,
        generated: int,
        shown: int,
        *,
        logprobs: bool,
        echoes: Sequence[str] = (),
    ) -> None:
        """For each prompt `generated` choices come, of which the likeliest `shown` are given.

        `echoes`: of each prompt what stands before its texts; empty without any.
        """
        self._identity = identity
        self._choices = [_Choice() for _ in range(prompts * generated)]
        self._generated = generated
        self._shown = shown
        self._logprobs = logprobs
        self._echoes = echoes

    def events(self, events: list[Event]) -> None:
        """Collect."""
        for event in events:
            choice = self._choices[event.choice]
            if type(event) is TextDelta:
                choice.texts.append(event.text)
                if event.logprobs is not None:
                    choice.logprobs += event.logprobs
            elif type(event) is Finish:
                choice.finish = event

    def end(self, usage: Usage) -> bytes:
        """The body. Raises RequestError where a choice was aborted or never finished."""
        choices: list[bytes] = []
        generated = self._generated
        for at in range(0, len(self._choices), generated):
            of_prompt = self._choices[at : at + generated]
            echo = self._echoes[at // generated] if self._echoes else ""
            if self._shown < generated:
                of_prompt = sorted(of_prompt, key=lambda choice: choice.likelihood, reverse=True)[: self._shown]
            for choice in of_prompt:
                finish = choice.finish
                if finish is None:
                    raise RequestError(TRUNCATED)
                if finish.reason is FinishReason.ABORT:
                    raise RequestError(ABORTED)
                logprobs = _logprobs_json(choice.logprobs, _Offsets(len(echo))) if self._logprobs else b"null"
                text = _json(echo + "".join(choice.texts))
                choices.append(
                    b'{"index":%d,"text":%b,"logprobs":%b,%b}' % (len(choices), text, logprobs, _ending(finish))
                )
        identity = self._identity
        return b'{"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[%b],"usage":%b}' % (
            _json(identity.id),
            identity.created_s,
            _json(identity.model),
            b",".join(choices),
            _usage_json(usage),
        )


class _Offsets:
    """At which character of a choice's text each of its tokens begins; one that continues a character, at that one."""

    __slots__ = ("_begun",)

    def __init__(self, before: int) -> None:
        self._begun = before  # characters

    def next(self, token: bytes) -> int:
        """The place of the next token."""
        begun = self._begun
        self._begun += sum([byte & 0xC0 != 0x80 for byte in token])
        return begun - 1 if token and token[0] & 0xC0 == 0x80 and begun else begun


def _logprobs_json(entries: list[TokenLogprob], offsets: _Offsets) -> bytes:
    """The `logprobs` object: parallel lists. The generated token is always among its alternatives, as with OpenAI."""
    return _json(
        {
            "tokens": [_name(entry.token) for entry in entries],
            "token_logprobs": [_value(entry) for entry in entries],
            "top_logprobs": [
                {_name(each.token): _value(each) for each in entry.top} | {_name(entry.token): _value(entry)}
                for entry in entries
            ],
            "text_offset": [offsets.next(entry.token) for entry in entries],
        }
    )


def _name(token: bytes) -> str:
    """A token as text; one that is a part of a character, as OpenAI writes it."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in token])


def _value(entry: TokenLogprob) -> float:
    return entry.logprob if math.isfinite(entry.logprob) else _LEAST_LOGPROB


def _ending(finish: Finish) -> bytes:
    reason = b'"finish_reason":"%b"' % _REASONS[finish.reason]
    if finish.stop_sequence is not None:
        reason += b',"matched_stop":' + _json(finish.stop_sequence)
    return reason


def _usage_json(usage: Usage) -> bytes:
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
        % (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.prompt_tokens + usage.completion_tokens,
            usage.cached_tokens,
        )
    )
