"""The requests of a row, as bytes for the wire."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.gateway.model import MODEL
from benchmarks.gateway.rows import Prompt, Row
from benchmarks.gateway.text import distinct

_SYSTEM = "You are a careful assistant. Answer the question about the following text."
_BYTES_PER_WORD = 4  # fewer than any stretch of text has, so a cut-out is never too short
SESSION_HEADER = "x-session-id"
"""Of requests that belong to a conversation."""
_TURNS, _QUESTION_WORDS, _ANSWER_WORDS = 20, 60, 200
_SYSTEMS, _SYSTEM_CHARACTERS = 8, 16_000


@dataclass(frozen=True, slots=True)
class Requests:
    """What one run sends."""

    wire: list[bytes]
    distinct_words: int


def build(row: Row, words: Sequence[str], run: str, count: int) -> Requests:
    """The same ones for the same row and run, so that all set-ups get the same."""
    chance = random.Random(f"{row.name} {run}")
    if row.prompt is Prompt.CONVERSATION:
        return Requests(_conversations(row, words, chance, count), 0)
    if row.prompt is Prompt.SHARED_SYSTEM:
        return Requests(_shared_systems(row, words, chance, count), 0)
    if row.prompt is Prompt.SAME:
        chance = random.Random(row.name)
        stretch = _stretch(row, words, chance)
        return Requests([_wire(_body(row, stretch))] * count, distinct(stretch.split(" ")))
    stretches = [_stretch(row, words, chance) for _ in range(count)]
    used = {word for stretch in stretches for word in stretch.split(" ")} if row.min_distinct_words else set()
    return Requests([_wire(_body(row, stretch)) for stretch in stretches], distinct(list(used)))


def _conversations(row: Row, words: Sequence[str], chance: random.Random, count: int) -> list[bytes]:
    """As many conversations at a time as there are connections; each turn comes after the one before it."""
    wire: list[bytes] = []
    at_once = min(row.connections, max(count // _TURNS, 1))
    while (first := len(wire)) < count:
        talks = [[_said("system", _SYSTEM)] for _ in range(at_once)]
        for _ in range(_TURNS):
            for number, talk in enumerate(talks):
                talk.append(_said("user", _some(words, _QUESTION_WORDS, chance)))
                wire.append(_wire(_with(row, talk), f"{first}-{number}"))
                talk.append(_said("assistant", _some(words, _ANSWER_WORDS, chance)))
    return wire[:count]


def _shared_systems(row: Row, words: Sequence[str], chance: random.Random, count: int) -> list[bytes]:
    always = random.Random(row.name)
    systems = [_some(words, _SYSTEM_CHARACTERS // 2, always)[:_SYSTEM_CHARACTERS] for _ in range(_SYSTEMS)]
    wire: list[bytes] = []
    for _ in range(count):
        question = _said("user", _some(words, _QUESTION_WORDS, chance))
        wire.append(_wire(_with(row, [_said("system", chance.choice(systems)), question])))
    return wire


def _some(words: Sequence[str], count: int, chance: random.Random) -> str:
    start = chance.randrange(len(words) - count)
    return " ".join(words[start : start + count])


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _stretch(row: Row, words: Sequence[str], chance: random.Random) -> str:
    count = row.words or row.body_bytes // _BYTES_PER_WORD
    stretch = _some(words, count, chance)
    if row.body_bytes:
        around = len(_body(row, ""))
        over = len(json.dumps(stretch, ensure_ascii=False).encode()) - 2 + around - row.body_bytes
        while over > 0:
            stretch = stretch[: -max(over // 2, 1)]
            over = len(json.dumps(stretch, ensure_ascii=False).encode()) - 2 + around - row.body_bytes
    return stretch


def _body(row: Row, text: str) -> bytes:
    return _with(row, [_said("system", _SYSTEM), _said("user", text)])


def _with(row: Row, messages: Sequence[dict[str, str]]) -> bytes:
    body: dict[str, object] = {"model": MODEL, "messages": messages, "max_tokens": row.tokens}
    if row.stream:
        # Usage is how the answers are checked.
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _wire(body: bytes, session: str = "") -> bytes:
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "host: gateway\r\n"
        "accept: application/json\r\n"
        "content-type: application/json\r\n"
        "user-agent: benchmark\r\n"
        "authorization: Bearer benchmark\r\n"
        + (f"{SESSION_HEADER}: {session}\r\n" if session else "")
        + f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
