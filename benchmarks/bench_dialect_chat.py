"""What the chat dialect costs: us per parse and per streamed delta, the best of several rounds.

Run: python benchmarks/bench_dialect_chat.py
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence

from extproc.dialects.base import AnswerIdentity, Inbound
from extproc.dialects.json_body import BodyLimits
from extproc.dialects.openai_chat import OpenAIChat
from extproc.engines.base import EngineEvent, Tokens
from extproc.ir import Event, ReasoningDelta, Sampling, TextDelta, TokenLogprob, ToolArgsDelta, ToolDef
from extproc.output.answer_text import AnswerText
from extproc.output.parsers import TOOL_PARSERS
from extproc.output.reader import Reading

ROUNDS = 7
RNG = random.Random(1)
WORDS = ["".join(RNG.choices("abcdefghijklmnop", k=RNG.randint(2, 9))) for _ in range(2000)]
INBOUND = Inbound("POST", "/v1/chat/completions", "", {})
DIALECT = OpenAIChat(BodyLimits())


def text(words: int) -> str:
    return " ".join(RNG.choices(WORDS, k=words))


def body(turns: list[str], **fields: object) -> bytes:
    messages = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]
    system = {"role": "system", "content": "You are helpful."}
    return json.dumps({"model": "m", "messages": [system, *messages], **fields}).encode()


class FixedText:
    """A tokenizer that costs nothing, so that what is left is ours. Its first word may be another."""

    def __init__(self, first: str = " word") -> None:
        self._next = first

    def detokenizer(self, *, skip_special_tokens: bool, shown: tuple[str, ...] = ()) -> FixedText:
        return self

    def feed(self, ids: Sequence[int]) -> str:
        text, self._next = self._next, " word"
        return text

    def finish(self) -> str:
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        return b" word"


def reading_for(reasoning: str | None, tool: str | None) -> Reading:
    return Reading(
        call_id=lambda choice, index: "call_1",
        reasoning=reasoning,
        calls=None if tool is None else TOOL_PARSERS[tool],
        tools={"f": ToolDef(name="f")},
    )


def measure(name: str, run: Callable[[], object], count: int, per: int = 1) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(count):
            run()
        best = min(best, time.perf_counter() - start)
    print(f"{name:60} {best / count / per * 1e6:9.3f} us")


def main() -> None:
    common = {"stream": True, "temperature": 0.7, "max_tokens": 256, "stream_options": {"include_usage": True}}
    small = body([text(300)], **common)
    large = body([text(36_000)], **common)
    long = body([text(180) for _ in range(201)], **common)
    for name, data, count in (
        ("300 words", small, 20_000),
        ("36,000 words, 2 messages", large, 300),
        ("201 messages of 180 words", long, 300),
    ):
        measure(f"parse {len(data) / 1000:.0f} KB: {name}", lambda data=data: DIALECT.parse(INBOUND, data), count)

    request = DIALECT.parse(INBOUND, small)
    renderer = DIALECT.stream(request, AnswerIdentity("chatcmpl-" + "0" * 32, 1_700_000_000, "some/model-name"))
    one: list[Event] = [TextDelta(0, " word")]
    eight: list[Event] = [TextDelta(0, " word") for _ in range(8)]
    top = tuple(TokenLogprob(b" word", -1.0) for _ in range(5))
    scored: list[Event] = [TextDelta(0, " word", [TokenLogprob(b" word", -1.0, top)])]
    measure("stream: a delta", lambda: renderer.events(one), 200_000)
    measure("stream: a delta, 8 at once", lambda: renderer.events(eight), 50_000, per=8)
    measure("stream: a delta with log probabilities and 5 alternatives", lambda: renderer.events(scored), 10_000)

    thought: list[Event] = [ReasoningDelta(0, " word")]
    argument: list[Event] = [ToolArgsDelta(0, 0, " word")]
    measure("stream: a delta of reasoning", lambda: renderer.events(thought), 100_000)
    measure("stream: a delta of a call's arguments", lambda: renderer.events(argument), 100_000)

    tokens: list[EngineEvent] = [Tokens(0, [5])]
    for name, sampling in (
        ("no stop strings", Sampling()),
        ("1 stop string", Sampling(stop=("END",))),
        ("4 stop strings", Sampling(stop=("END", "\n\n", "User:", "<|stop|>"))),
    ):
        answer = AnswerText(sampling, FixedText())
        measure(f"tokens to text without detokenizing: {name}", lambda a=answer: a.feed(tokens), 100_000)
    for name, reading, before in (
        ("behind reasoning", reading_for("think", None), "<think>x</think>y"),
        ("in reasoning", reading_for("think", None), "<think>x"),
        ("with tools", reading_for("think", "hermes"), "<think>x</think>y"),
        ("in arguments", reading_for(None, "hermes"), '<tool_call>{"name": "f", "arguments": {"a": "'),
    ):
        answer = AnswerText(Sampling(), FixedText(before), reading)
        answer.feed(tokens)
        measure(f"tokens to text without detokenizing: {name}", lambda a=answer: a.feed(tokens), 50_000)


if __name__ == "__main__":
    main()
