"""What one candidate of an answer consists of: its parts as JSON, and its log probabilities."""

from __future__ import annotations

import math

import msgspec

from extproc.dialects.gemini_signatures import opaque_signature, text_signature
from extproc.dialects.tool_arguments import object_of
from extproc.ir import (
    Event,
    Opaque,
    OpaqueDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallEnd,
    ToolCallStart,
)

_json = msgspec.json.Encoder().encode

NOTHING = b'{"text":""}'
"""The part of a candidate that says nothing more."""

_LEAST_LOGPROB = -9999.0  # in place of -inf, which JSON does not have


class PartWriter:
    """Parts of one candidate: each call gives those that are complete with it, as JSON."""

    __slots__ = ("_call", "_call_signatures", "_hidden", "_shows", "last", "signatures")

    def __init__(self, *, shows: bool) -> None:
        self._shows = shows
        self._hidden: list[str] = []  # thoughts that the client does not want to see
        self.signatures: list[str] = []  # for the next part
        self._call: ToolCallStart | None = None
        self._call_signatures: list[str] = []
        self.last = ""  # the kind of what came last

    def of(self, event: Event) -> list[bytes]:
        """Those that are complete with an event."""
        match event:
            case TextDelta() | RefusalDelta():
                return self.text(event.text) if event.text else []
            case ReasoningDelta():
                return self.thought(event.text) if event.text else []
            case ToolCallStart():
                return self.call_starts(event)
            case ToolCallEnd():
                return self.call_ends(event)
            case OpaqueDelta():
                return self.blob(event.opaque)
            case _:
                return []

    def text(self, text: str) -> list[bytes]:
        self.last = "text"
        return self._signed(b'"text":' + _json(text))

    def thought(self, text: str) -> list[bytes]:
        self.last = "thought"
        if self._shows:
            part = b'{"text":%b,"thought":true}' % _json(text)
            return [*self.rest(), part] if self.signatures else [part]
        self._hidden.append(text)
        return []

    def call_starts(self, start: ToolCallStart) -> list[bytes]:
        self._call = start
        self.last = "call"
        return []

    def call_ends(self, end: ToolCallEnd) -> list[bytes]:
        start = self._call
        assert start is not None
        self._call = None
        self.last = "call"
        content = b'"functionCall":{"id":%b,"name":%b,"args":%b}' % (
            _json(start.call_id),
            _json(start.name),
            _json(object_of(end.arguments)),
        )
        parts = self._signed(content, self._call_signatures)
        self._call_signatures = []
        return parts

    def blob(self, opaque: Opaque) -> list[bytes]:
        """It belongs to what is open or came last: with thoughts, it goes to what follows them."""
        signature = opaque_signature(opaque)
        if self._call is not None:
            self._call_signatures.append(signature)
        elif self.last in ("text", "call"):
            return [_only_signed(signature)]
        else:
            self._seal()
            self.signatures.append(signature)
        return []

    def rest(self) -> list[bytes]:
        """What nothing followed."""
        self._seal()
        parts = [_only_signed(signature) for signature in self.signatures]
        self.signatures = []
        return parts

    def _seal(self) -> None:
        if self._hidden:
            self.signatures.append(text_signature("".join(self._hidden)))
            self._hidden.clear()

    def _signed(self, content: bytes, more: list[str] | None = None) -> list[bytes]:
        """A part with its signature. There is room for one: others stand before it, in parts that say nothing."""
        self._seal()
        signatures = self.signatures + more if more else self.signatures
        if not signatures:
            return [b"{%b}" % content]
        self.signatures = []
        parts = [_only_signed(signature) for signature in signatures[:-1]]
        parts.append(b'{%b,"thoughtSignature":%b}' % (content, _json(signatures[-1])))
        return parts


class LogprobSum:
    """The sum over one candidate."""

    __slots__ = ("_count", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, entries: list[TokenLogprob]) -> None:
        self._sum += sum([_finite(entry.logprob) for entry in entries])
        self._count += len(entries)

    def average(self) -> bytes:
        return b'"avgLogprobs":%b,' % _json(self._sum / self._count) if self._count else b""


def _only_signed(signature: str) -> bytes:
    return b'{"text":"","thoughtSignature":%b}' % _json(signature)


def logprobs_json(entries: list[TokenLogprob]) -> bytes:
    """The chosen tokens, and beside each its alternatives. A token that is a part of a character is not shown whole."""
    chosen = list(map(_entry, entries))
    top = [{"candidates": list(map(_entry, entry.top))} for entry in entries]
    return _json({"topCandidates": top, "chosenCandidates": chosen})


def _entry(entry: TokenLogprob) -> dict[str, object]:
    return {"token": entry.token.decode("utf-8", "replace"), "logProbability": _finite(entry.logprob)}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB
