"""One conversation said in every dialect by its official SDK, and the answer read back into one form.

So that a test can say once what must hold of all of them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

WEATHER_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOLS: Mapping[str, dict[str, Any]] = {
    "weather": WEATHER_PARAMETERS,
    "now": {"type": "object", "properties": {}},
    "today": {"type": "object", "properties": {}},
}
"""Parameters by name."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request of any dialect."""

    model: str
    turns: tuple[str | Seen | Results, ...] = ("What is the weather in Zürich?",)  # a string: the user's
    system: str | None = None
    tools: bool = False  # TOOLS
    choice: str | None = None  # `none`, `required`, `named`: weather, `allowed`: now or today must be called
    parallel: bool = True
    thinking: bool | None = None
    schema: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    max_tokens: int = 500
    temperature: float | None = None
    image: bool = False  # beside the last turn's text


PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU"
    b"\x00\x00\x00\nIDATx\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"
).decode()
"""The smallest image, in base64."""


@dataclass(frozen=True)
class Results:
    """What tools answered: number of the call in the last answer, text, whether it is an error. In this order."""

    of: Seen
    results: tuple[tuple[int, str, bool], ...]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An answer as the SDK has it. What a dialect does not tell is None."""

    id: str
    model: str
    text: str
    reasoning: str | None
    calls: tuple[tuple[str, Any], ...]  # name and arguments
    call_ids: tuple[str, ...]
    finish: str
    stop_sequence: str | None = None
    prompt_tokens: int  # cached ones included
    cached_tokens: int | None
    completion_tokens: int  # reasoning included
    reasoning_tokens: int | None
    logprobs: tuple[float, ...] | None = None
    native: list[Any] = field(compare=False)  # to be sent back


class Speaker(Protocol):
    """A dialect."""

    finishes: Mapping[str, str]  # what it calls `stop`, `stop_sequence`, `length`, `tool_calls`
    cannot: frozenset[str]  # forms of requests that it has not
    refused: type[Exception]  # what the SDK raises for a status of 400

    async def ask(self, asked: Asked, *, streamed: bool) -> Seen: ...

    async def close(self) -> None: ...
