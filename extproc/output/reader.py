"""One choice's text to events: reasoning, then text and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from extproc.ir import ChatRequest, Event, ReasoningDelta, TextDelta, ToolDef
from extproc.output.forced_calls import forced_array, forced_object
from extproc.output.harmony import harmony
from extproc.output.parsers import CALL_MARKERS, HARMONY, TOOL_PARSERS, Parsers, Parsing, tokens_of
from extproc.output.reasoning import ReasoningSplitter, begins_inside
from extproc.output.sink import Sink
from extproc.output.source import Source, Steps

__all__ = ["AnswerReader", "Reading", "reading_of"]


class Reading(Struct, frozen=True):
    """How the text of a request's answer is read."""

    call_id: Callable[[int, int], str]  # of a choice's call, both from 0 on
    reasoning: str | None = None  # the parser's name
    inside: bool = False  # the answer begins within the reasoning
    or_json: bool = False  # or with JSON at once
    calls: Parsing | None = None
    call_marker: str | None = None  # what calls begin with
    channels: bool = False  # `calls` also finds the reasoning
    tools: Mapping[str, ToolDef] = {}
    shown: tuple[str, ...] = ()  # special tokens that belong to the text


def reading_of(
    parsers: Parsers,
    chat: ChatRequest,
    tools: Mapping[str, ToolDef],
    prompt_end: str,
    call_id: Callable[[int, int], str],
) -> Reading | None:
    """None where the text is the answer as it stands. `tools`: those that the model may call, by name."""
    reasoning = parsers.reasoning
    choice = chat.tool_choice
    forced = bool(tools) and choice.mode in ("required", "named")
    calls: Parsing | None = None
    tool_parser = parsers.tool if tools else None
    if reasoning == HARMONY or tool_parser == HARMONY:
        # One parser for all; what is forced comes in its channels, or as JSON alone.
        calls, reasoning, tool_parser = harmony, None, HARMONY
    elif tool_parser is not None:
        calls = TOOL_PARSERS[tool_parser]
    if forced:
        calls = _forced(choice.names[0] if choice.mode == "named" else None, calls)
    if reasoning is None and calls is None:
        return None
    inside = False
    if reasoning is not None:
        inside = begins_inside(reasoning, prompt_end, chat.turns[-1].text if chat.continue_final_message else None)
    channels = tool_parser == HARMONY
    bound = forced or (chat.output is not None and chat.output.kind in ("json_object", "json_schema"))
    return Reading(
        call_id,
        reasoning,
        inside,
        bound,
        calls,
        CALL_MARKERS.get(tool_parser or ""),
        channels,
        tools,
        tokens_of(tool_parser, reasoning),
    )


def _forced(name: str | None, otherwise: Parsing | None) -> Parsing:
    """JSON as the engine was bound to write it, or what the model writes where the engine did not."""

    def parse(source: Source, sink: Sink) -> Steps[None]:
        character = yield from source.ahead()
        if otherwise is not None and character != ("[" if name is None else "{"):
            yield from otherwise(source, sink)
        elif name is None:
            yield from forced_array(source, sink)
        else:
            yield from forced_object(name, source, sink)

    return parse


class AnswerReader:
    """Reads one choice. Feeding the text in other pieces gives the same events but for the cuts of their texts."""

    __slots__ = ("_channels", "_choice", "_parser", "_sink", "_source", "_splitter")

    def __init__(self, reading: Reading, choice: int) -> None:
        self._choice = choice
        self._channels = reading.channels
        self._sink = Sink(choice, reading.tools, reading.call_id)
        self._splitter = (
            None
            if reading.reasoning is None
            else ReasoningSplitter(
                reading.reasoning, inside=reading.inside, or_json=reading.or_json, calls=reading.call_marker
            )
        )
        self._source = Source()
        self._parser = None if reading.calls is None else reading.calls(self._source, self._sink)

    @property
    def calls(self) -> int:
        """Tool calls that there are so far."""
        return self._sink.calls

    @property
    def in_text(self) -> bool:
        """What came last is text of the answer."""
        splitter = self._splitter
        return (splitter is None or splitter.in_text) and self._sink.in_text

    @property
    def in_reasoning(self) -> bool:
        """What came last is reasoning."""
        splitter = self._splitter
        return self._sink.in_reasoning if splitter is None else splitter.inside

    @property
    def may_reason(self) -> bool:
        """Reasoning may come."""
        splitter = self._splitter
        return self._channels if splitter is None else not splitter.done

    @property
    def idle(self) -> bool:
        """All that follows is text as it stands."""
        splitter = self._splitter
        return self._parser is None and splitter is not None and splitter.only_text

    def feed(self, text: str) -> list[Event]:
        """What is certain now.

        Hot: once per token of a model that reasons or may call tools.
        """
        splitter = self._splitter
        events: list[Event] = []
        if splitter is not None:
            reasoning, text = splitter.feed(text)
            if reasoning:
                events.append(ReasoningDelta(self._choice, reasoning))
            if not text:
                return events
        parser = self._parser
        if parser is None:
            events.append(TextDelta(self._choice, text))
            return events
        self._sink.events = events
        source = self._source
        if not source.passes(text):
            source.feed(text)
            next(parser, None)
        return events

    def finish(self) -> list[Event]:
        """What was held back, once nothing follows."""
        splitter = self._splitter
        events: list[Event] = []
        text = ""
        if splitter is not None:
            reasoning, text = splitter.finish()
            if reasoning:
                events.append(ReasoningDelta(self._choice, reasoning))
        parser = self._parser
        if parser is None:
            if text:
                events.append(TextDelta(self._choice, text))
            return events
        sink = self._sink
        sink.events = events
        self._source.feed(text)
        self._source.end()
        next(parser, None)
        sink.finish()
        return events
