"""Requests as bytes, made before they are sent and kept in a file, so that sending them costs no more than a copy.

A content id becomes a fixed pseudo-random text: words of the tokenizer's own vocabulary, each exactly one token with
the space before it, so prompts are as long as the trace says and share exactly what the trace's prompts share.
"""

from __future__ import annotations

import json
import mmap
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.gateway.model import MODEL
from benchmarks.routing.trace import BLOCK_TOKENS, Request

_WORD = re.compile("\u0120[a-z]{2,6}")  # \u0120: a space, as byte-level BPE writes it; English has 4.7 letters a token
_MODEL_SENTENCE = "A prompt of {} words came out as {} tokens"


class Bodies:
    """The requests of one traffic, by number, as they go on the wire."""

    def __init__(self, file: Path, ends: Sequence[int]) -> None:
        with file.open("rb") as opened:
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return self._map[self._ends[number - 1] if number else 0 : self._ends[number]]

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()


def words(tokenizer: Path) -> list[str]:
    """Words with their space that are one token each, in the order of the vocabulary."""
    loaded = Tokenizer.from_file(str(tokenizer))
    found = [" " + word[1:] for word in loaded.get_vocab() if _WORD.fullmatch(word)]
    found.sort()
    encoded = loaded.encode_batch(found, add_special_tokens=False)
    kept = [word for word, each in zip(found, encoded, strict=True) if len(each.ids) == 1]
    sample = "".join(random.Random(0).choices(kept, k=2_000))
    count = len(loaded.encode(sample, add_special_tokens=False).ids)
    if count != 2_000:
        raise ValueError(_MODEL_SENTENCE.format(2_000, count))
    return kept


def build(requests: Sequence[Request], vocabulary: Sequence[str], file: Path) -> Bodies:
    """Write all requests to a file. One text of a content id is in memory at a time, or as many as are shared."""
    uses = Counter(content for request in requests for content, _ in request.pieces)
    kept: dict[int, list[str]] = {}
    ends: list[int] = []
    end = 0
    with file.open("wb") as out:
        for request in requests:
            parts: list[str] = []
            for content, tokens in request.pieces:
                text = kept.get(content)
                if text is None:
                    text = random.Random(content).choices(vocabulary, k=BLOCK_TOKENS)
                    if uses[content] > 1:
                        kept[content] = text
                parts += text[:tokens]
            wire = _wire("".join(parts), request.output_tokens)
            out.write(wire)
            end += len(wire)
            ends.append(end)
    return Bodies(file, ends)


def warm_up(count: int, vocabulary: Sequence[str], tokens: int) -> list[bytes]:
    """Short requests that share nothing with any traffic."""
    chance = random.Random("warm-up")
    return [_wire("".join(chance.choices(vocabulary, k=tokens)), 4) for _ in range(count)]


def _wire(text: str, output_tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "host: gateway\r\n"
        "accept: text/event-stream\r\n"
        "content-type: application/json\r\n"
        "user-agent: benchmark\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
