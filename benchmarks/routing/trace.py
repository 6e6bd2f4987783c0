"""The traffic: the published trace of an hour of production chat, and variants of it.

The file is `conversation_trace.jsonl` of the Mooncake paper (FAST '25), one JSON object a line: timestamp (ms),
input_length, output_length (tokens) and hash_ids, one for each 512 tokens of the prompt; equal ids are equal content.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

BLOCK_TOKENS = 512
PUBLIC_SOURCE = "https://github.com/kvcache-ai/Mooncake, file FAST25-release/traces/conversation_trace.jsonl"
_NAMES = (
    "mooncake_conversation.jsonl.gz",
    "mooncake_conversation.jsonl",
    "conversation_trace.jsonl.gz",
    "conversation_trace.jsonl",
)
_HOT_TOKENS = 8_000
_HOT_ID = -1  # and below: ids that the trace does not have
_OWN_ID = 1 << 40  # from here on: ids that nobody shares


class TraceError(Exception):
    """There is no trace, or it is none; the message says what to do."""


class Scenario(StrEnum):
    """What is changed about the trace, or about the workers while it runs."""

    TRACE = "trace"
    HOT_PREFIX = "hot-prefix"
    NO_SHARING = "no-sharing"
    KILL = "kill"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the traffic."""

    at_s: float  # model time of its arrival
    pieces: tuple[tuple[int, int], ...]  # its prompt: (content id, tokens); a piece is the start of its content
    output_tokens: int

    @property
    def input_tokens(self) -> int:
        """Length of its prompt."""
        return sum(tokens for _, tokens in self.pieces)


def read(path: Path, minutes: float) -> list[Request]:
    """The first minutes of a trace, given as its file or the folder with it. Raises TraceError."""
    file = path if path.is_file() else next((path / name for name in _NAMES if (path / name).is_file()), None)
    if file is None:
        raise TraceError(
            f"no trace at {path}. It is public: {PUBLIC_SOURCE} (Apache-2.0). Put the file there, or name its place: "
            "make bench-routing TRACE=/path/to/conversation_trace.jsonl"
        )
    requests = []
    try:
        with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
            for line in lines:
                fields = json.loads(line)
                at_s = fields["timestamp"] / 1e3
                if at_s >= minutes * 60.0:
                    break
                pieces = _pieces(fields["hash_ids"], fields["input_length"])
                requests.append(Request(at_s, pieces, fields["output_length"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{file} is no such trace: {error!r}. The trace is public: {PUBLIC_SOURCE}") from error
    return requests


def _pieces(ids: Sequence[int], tokens: int) -> tuple[tuple[int, int], ...]:
    whole = [(each, BLOCK_TOKENS) for each in ids[:-1]]
    return (*whole, (ids[-1], tokens - BLOCK_TOKENS * len(whole)))


def vary(requests: Sequence[Request], scenario: Scenario) -> list[Request]:
    """The traffic of a scenario."""
    match scenario:
        case Scenario.HOT_PREFIX:
            return [
                _with_hot_prefix(request) if random.Random(f"hot {number}").random() < 0.5 else request
                for number, request in enumerate(requests)
            ]
        case Scenario.NO_SHARING:
            return [_unshared(request, number) for number, request in enumerate(requests)]
        case _:
            return list(requests)


def _with_hot_prefix(request: Request) -> Request:
    """Its first 8,000 tokens are everybody's; what follows stays its own, its last piece at least."""
    hot = [(_HOT_ID - number, BLOCK_TOKENS) for number in range(_HOT_TOKENS // BLOCK_TOKENS)]
    if _HOT_TOKENS % BLOCK_TOKENS:
        hot.append((_HOT_ID - len(hot), _HOT_TOKENS % BLOCK_TOKENS))
    own = request.pieces[len(hot) :] or request.pieces[-1:]
    return Request(request.at_s, (*hot, *own), request.output_tokens)


def _unshared(request: Request, number: int) -> Request:
    pieces = tuple((_OWN_ID + number * 1024 + at, tokens) for at, (_, tokens) in enumerate(request.pieces))
    return Request(request.at_s, pieces, request.output_tokens)
