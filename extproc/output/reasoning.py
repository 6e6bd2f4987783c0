"""Reasoning before the answer's text, between two markers.

It is looked for at the beginning only: a model that writes about `<think>` later on is taken at its word. Where the
prompt already ends with the opening marker, everything is reasoning until the closing one, or until a tool call on a
line of its own: models forget to close before they call.
"""

from __future__ import annotations

from enum import Enum

from extproc.output.source import open_end

__all__ = ["MARKERS", "ReasoningSplitter", "begins_inside"]

MARKERS: dict[str, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "deepseek_r1": ("<think>", "</think>"),  # of models whose reasoning begins without any marker
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma": ("<|channel>thought", "<channel|>"),
}
"""By the names that a configuration uses."""

ALWAYS_INSIDE = frozenset(("deepseek_r1",))

_NEWLINES = "\r\n"


def begins_inside(name: str, prompt_end: str, continued: str | None = None) -> bool:
    """Whether the answer begins in the middle of the reasoning.

    Of the prompt only its very end counts: before it stands what anybody wrote. `continued`: the message that the
    answer continues, if it does.
    """
    opening, closing = MARKERS[name]
    if continued is not None:
        begun = continued.rfind(opening)
        return begun >= 0 and closing not in continued[begun:]
    end = prompt_end.rstrip()
    return end.endswith(opening) or (name in ALWAYS_INSIDE and not end.endswith(closing))


class _State(Enum):
    BEGINNING = "beginning"  # the opening marker may come
    INSIDE_BEGINNING = "inside_beginning"  # it is reasoning, and the model may repeat the marker
    UNSURE = "unsure"  # reasoning, unless JSON comes at once
    INSIDE = "inside"
    BEHIND = "behind"  # newlines after the closing marker are dropped
    TEXT = "text"


_TEXT_STATES = frozenset((_State.TEXT, _State.BEGINNING, _State.UNSURE))


class ReasoningSplitter:
    """Tells one choice's reasoning from its text. Newlines next to the markers belong to them."""

    __slots__ = ("_calls", "_close", "_held", "_open", "_said", "_state")

    def __init__(self, name: str, *, inside: bool, or_json: bool, calls: str | None = None) -> None:
        """`or_json`: the engine is bound to JSON, and may be so from the first token on, whatever the prompt began.

        `calls`: the marker of tool calls, where there may be any.
        """
        self._open, self._close = MARKERS[name]
        self._calls = None if calls is None else "\n" + calls
        self._held = ""
        self._said = False  # some reasoning
        self._state = _State.BEGINNING if not inside else _State.UNSURE if or_json else _State.INSIDE_BEGINNING

    @property
    def inside(self) -> bool:
        """What comes now is reasoning, or its closing marker."""
        return self._state is _State.INSIDE or self._state is _State.INSIDE_BEGINNING

    @property
    def in_text(self) -> bool:
        """What came last is text, or may be."""
        return self._state in _TEXT_STATES

    @property
    def only_text(self) -> bool:
        """All that follows is text as it stands."""
        return self._state is _State.TEXT

    @property
    def done(self) -> bool:
        """No reasoning comes any more."""
        return self._state is _State.TEXT or self._state is _State.BEHIND

    def feed(self, text: str) -> tuple[str, str]:
        """Reasoning and text that are certain now.

        Hot: once per token of a model that reasons.
        """
        state = self._state
        if state is _State.TEXT:
            return "", text
        if state is _State.INSIDE:
            return self._inside(text)
        if state is _State.BEHIND:
            return "", self._behind(text)
        return self._beginning(self._held + text)

    def finish(self) -> tuple[str, str]:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        if self._state is _State.INSIDE:
            return (held.rstrip if self._said else held.strip)(_NEWLINES), ""
        if self._state is _State.INSIDE_BEGINNING or self._state is _State.UNSURE:
            return held.strip(_NEWLINES), ""
        return "", held

    def _beginning(self, text: str) -> tuple[str, str]:
        self._held = ""
        begun = text.lstrip()
        state = self._state
        if state is _State.UNSURE and begun:
            if begun[0] in "{[" and not begun.startswith(self._open[:1]):
                self._state = _State.TEXT
                return "", text
            state = self._state = _State.INSIDE_BEGINNING
        if begun.startswith(self._open):
            self._state = _State.INSIDE
            return self._inside(begun[len(self._open) :])
        if self._open.startswith(begun):
            self._held = text
            return "", ""
        if state is _State.INSIDE_BEGINNING:
            self._state = _State.INSIDE
            return self._inside(text)
        self._state = _State.TEXT
        return "", text

    def _inside(self, text: str) -> tuple[str, str]:
        if self._said and not self._held and self._close[0] not in text and "\n" not in text and "\r" not in text:
            return text, ""  # most tokens
        if not self._said:
            # The beginning is that of a line.
            text = "\n" + (self._held + text).lstrip(_NEWLINES)
            self._held = ""
        elif self._held:
            text = self._held + text
            self._held = ""
        place = text.find(self._close)
        calls = self._calls
        if calls is not None:
            called = text.find(calls, 0, place if place >= 0 else len(text))
            if called >= 0:
                self._state = _State.TEXT
                return (text[:called].rstrip if self._said else text[:called].strip)(_NEWLINES), text[called + 1 :]
        if place >= 0:
            self._state = _State.BEHIND
            reasoning = text[:place].rstrip(_NEWLINES)
            return reasoning if self._said else reasoning.lstrip(_NEWLINES), self._behind(
                text[place + len(self._close) :]
            )
        held = open_end(text, self._close)
        if calls is not None:
            held = max(held, open_end(text, calls))
        end = len(text) - held
        end = len(text[:end].rstrip(_NEWLINES))
        self._held = text[end:]
        if not end:
            return "", ""
        text = text[:end]
        if not self._said:
            self._said = True
            text = text.lstrip(_NEWLINES)
        return text, ""

    def _behind(self, text: str) -> str:
        text = text.lstrip(_NEWLINES)
        if text:
            self._state = _State.TEXT
        return text
