"""What engines say: token ids without the closing eos, by prompt and seed."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from extproc.simulator.artifacts import Artifacts

_ROLES = frozenset({"assistant", "human", "model", "system", "tool", "user"})
_ECHO_TAIL_TOKENS = 4096
_KEPT_TEXTS = 256

_EVERYDAY = (
    "the a one each some every quiet river light window morning paper garden stone letter road winter engine table "
    "answer signal harbour bridge music early late slowly gently never always often carries follows opens holds finds "
    "keeps remembers turns over under beside through across behind and but while because until where small bright old "
    "new warm cold simple distant careful"
)
_WORDS = tuple(_EVERYDAY.split())
_RARE_WORDS = (
    "naïve",
    "café",
    "Übergang",
    "東京",
    "日本語の",
    "안녕하세요",
    "Привет",
    "שלום",
    "🙂",
    "🚀",
    "👩‍👩‍👧",
    "≈",
    "— ¿qué?",
)


class Script(Protocol):
    """A way to answer."""

    def ids(self, prompt: Sequence[int], turn: int, seed: int) -> Sequence[int]:
        """The answer's tokens: `turn` counts the answers of this engine, `seed` chooses where there is a choice."""
        ...


class Echo:
    """Repeats the last turn of the prompt: what stands between its last special tokens, without the role."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    def ids(self, prompt: Sequence[int], turn: int, seed: int) -> Sequence[int]:
        artifacts = self._artifacts
        text = last_turn([artifacts.decode(part) for part in self._parts(prompt[-_ECHO_TAIL_TOKENS:])])
        return artifacts.encode(text)

    def _parts(self, ids: Sequence[int]) -> list[list[int]]:
        parts: list[list[int]] = [[]]
        special = self._artifacts.special_ids
        for token in ids:
            if token in special:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts


def last_turn(parts: Sequence[str]) -> str:
    """The last part with something in it but a role; a role on a line of its own before a text is cut off."""
    for part in reversed(parts):
        text = part.strip()
        if not text or text in _ROLES:
            continue
        first, newline, rest = text.partition("\n")
        return rest.strip() if newline and first.strip() in _ROLES else text
    return ""


class Scripted:
    """Given texts in turn."""

    def __init__(self, artifacts: Artifacts, texts: Sequence[str]) -> None:
        self._answers = [artifacts.encode(text) for text in texts]

    def ids(self, prompt: Sequence[int], turn: int, seed: int) -> Sequence[int]:
        return self._answers[turn % len(self._answers)]


class Natural:
    """Made-up sentences of a given length in tokens, the same for the same seed."""

    def __init__(self, artifacts: Artifacts, tokens: int) -> None:
        self._artifacts = artifacts
        self._tokens = tokens
        self._kept: OrderedDict[int, list[int]] = OrderedDict()

    def ids(self, prompt: Sequence[int], turn: int, seed: int) -> Sequence[int]:
        kept = self._kept
        ids = kept.get(seed)
        if ids is None:
            ids = kept[seed] = self._make(seed)
            if len(kept) > _KEPT_TEXTS:
                kept.popitem(last=False)
        return ids

    def _make(self, seed: int) -> list[int]:
        # Enough words for the length, cut to it: the cut may fall into a character, as max_tokens does.
        chance = random.Random(seed)  # noqa: S311  # no secret
        ids: list[int] = []
        while len(ids) < self._tokens:
            ids += self._artifacts.encode(sentence(chance) + " ")
        return ids[: self._tokens]


def sentence(chance: random.Random) -> str:
    """A sentence of everyday words, and now and then one whose characters take several tokens."""
    words = [
        chance.choice(_RARE_WORDS) if chance.random() < 0.04 else chance.choice(_WORDS)
        for _ in range(chance.randint(5, 14))
    ]
    words[0] = words[0][:1].upper() + words[0][1:]
    return " ".join(words) + chance.choice(".....?!")
