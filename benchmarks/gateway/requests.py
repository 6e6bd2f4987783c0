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


@dataclass(frozen=True, slots=True)
class Requests:
    """What one run sends."""

    wire: list[bytes]
    distinct_words: int


def build(row: Row, words: Sequence[str], run: str, count: int) -> Requests:
    """The same ones for the same row and run, so that all set-ups get the same."""
    chance = random.Random(f"{row.name} {run}")
    if row.prompt is Prompt.SAME:
        chance = random.Random(row.name)
        stretch = _stretch(row, words, chance)
        return Requests([_wire(row, stretch)] * count, distinct(stretch.split(" ")))
    stretches = [_stretch(row, words, chance) for _ in range(count)]
    used = {word for stretch in stretches for word in stretch.split(" ")} if row.min_distinct_words else set()
    return Requests([_wire(row, stretch) for stretch in stretches], distinct(list(used)))


def _stretch(row: Row, words: Sequence[str], chance: random.Random) -> str:
    count = row.words or row.body_bytes // _BYTES_PER_WORD
    start = chance.randrange(len(words) - count)
    stretch = " ".join(words[start : start + count])
    if row.body_bytes:
        around = len(_body(row, ""))
        over = len(json.dumps(stretch, ensure_ascii=False).encode()) - 2 + around - row.body_bytes
        while over > 0:
            stretch = stretch[: -max(over // 2, 1)]
            over = len(json.dumps(stretch, ensure_ascii=False).encode()) - 2 + around - row.body_bytes
    return stretch


def _body(row: Row, text: str) -> bytes:
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": text}],
        "max_tokens": row.tokens,
    }
    if row.stream:
        # Usage is how the answers are checked.
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _wire(row: Row, text: str) -> bytes:
    body = _body(row, text)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "host: gateway\r\n"
        "accept: application/json\r\n"
        "content-type: application/json\r\n"
        "user-agent: benchmark\r\n"
        "authorization: Bearer benchmark\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
