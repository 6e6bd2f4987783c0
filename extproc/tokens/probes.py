"""Texts on which two tokenizing libraries are compared: scripts and kinds of text, ranges of characters, mixtures.

The same texts on every run, so a tokenizer that was accepted once is accepted again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

__all__ = ["probes"]

_FRAGMENTS = (
    "Hello, world! How's it going? They've said I'd better, WE'LL see; it's 'quoted' isn't it'S.",
    "I'm you're he'd we'll I'M YOU'RE 'tis ''s 's's'd",
    "snake_case camelCase PascalCase kebab-case SCREAMING",
    "https://example.org/a/b?c=d&e=%20#f user@host.tld C:\\dir\\file",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F ²³¼ ٣٤٥ १२३ 一二三",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n\n\tif (a && b || !c) { a[i]++; }\r\n",
    '{"a": [1, 2.5e-3, null, true], "b": "\\u00e9"}',
    "{% if %}{{ x }}",
    "naïve café Straße ĳ ﬁ Ǆ İstanbul ı ſharp Å A\u030a e\u0301\u0323 \u1e69 ñ n\u0303",
    "你好，世界。今天天气怎么样？漢字とひらがなとカタカナ、한국어 문장입니다. \u1112\u1161\u11ab",
    "Привет, мир! Γειά σου Κόσμε. ბამარჯობა שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया สวัสดีชาวโลก \u0915\u094d\u0937\u093f \u0e01\u0e33 \u1780\u17d2\u1798 \u0bb8\u0bcd\u0bb0\u0bc0",
    "😀 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 👍🏽",
    "☃ \u2603\ufe0f \U000e0041 \U0010ffff",
    "\U00040000\U000bffff\ue000\uf8ff",
    " leading",
    "trailing ",
    "  two",
    "   three",
    "\n",
    "\n\n",
    "\r\n\r\n",
    "\t\t",
    " \n \n ",
    "\u00a0\u2003\u3000",
    "\u200b\u200d\ufeff",
    "\x00\x01\x04\x06\x0b\x0c\x13\x1b\x1d\x7f\x80\x85\x9f\xad",
    "!!!???...---***///",
    "<|im_start|>user\n",
    "</s>",
    "<|",
    "|>",
    "[CLS] [MASK]",
    "<0x41>",
    "▁under▁score ▁▁",
    "ĠGPT Ċ",
    "A" * 300,
    " " * 300,
    "0" * 100,
    "\n" * 100,
    "ab" * 200,
    "",
)
_RANGES = (0x00, 0x80, 0x100, 0x180, 0x2000, 0x3040, 0x1F600)  # 128 characters each
_MIXTURES = 400


def probes(added_tokens: Sequence[str]) -> Iterator[str]:
    """About 900 texts; `added_tokens` are the tokenizer's own, which are put among and cut in the texts."""
    yield from _FRAGMENTS
    for start in _RANGES:
        for at in range(start, start + 0x80, 16):
            characters = [chr(code) for code in range(at, at + 16)]
            yield "".join(characters)
            yield "x".join(characters)
            yield " ".join(characters)
    sample = added_tokens if len(added_tokens) <= 64 else [*added_tokens[:32], *added_tokens[-32:]]
    for token in sample:
        yield from (token, f"a{token}b", f"a {token} b", f" {token}\n{token}", token[:-1], token[1:])
    chance = random.Random(20240229)  # noqa: S311 - reproducible, not secret
    pieces = [*_FRAGMENTS, *sample, " ", "\n"]
    for _ in range(_MIXTURES):
        mixed = []
        for _ in range(chance.randint(1, 6)):
            piece = chance.choice(pieces)
            start = chance.randint(0, len(piece))
            mixed.append(piece[start : start + chance.randint(1, 40)])
        yield "".join(mixed)
