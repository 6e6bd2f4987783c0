"""Real text for prompts: comments and docstrings of Python's standard library and of the packages installed here.

A few million words of technical English with the names, paths and numbers that go with it, all under open licences and
already on the machine. Gathered once into a file, as reading the sources takes a quarter of a minute.
"""

from __future__ import annotations

import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"})
_MARKERS = ("<|", "|>", "｜", "</s>", "<s>")
"""Of chat templates: a word with one of them could be a special token."""


def load(file: Path) -> list[str]:
    """The words in order, from `file`, or gathered and written there."""
    if not file.exists():
        gathered = " ".join(_gather())
        beside = file.with_suffix(".part")
        beside.write_text(gathered, encoding="utf-8")
        beside.replace(file)
    return [sys.intern(word) for word in file.read_text(encoding="utf-8").split(" ")]


def distinct(words: Sequence[str]) -> int:
    """How many different words there are, whatever their case and the punctuation around them."""
    return len({word.strip(".,;:!?()[]{}<>\"'`*=-_").lower() for word in words})


def _gather() -> Iterator[str]:
    paths = sysconfig.get_paths()
    roots = (Path(paths["stdlib"]), Path(paths["purelib"]))
    for root in roots:
        for file in sorted(root.rglob("*.py")):
            if _SKIPPED.isdisjoint(file.relative_to(root).parts):
                for text in _prose(file):
                    yield from (word for word in text.split() if not any(marker in word for marker in _MARKERS))


def _prose(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.COMMENT:
                    yield token.string.lstrip("#! ")
                elif token.type == tokenize.STRING and token.string.endswith(('"""', "'''")):
                    yield token.string.strip("rRbBuUfF").strip("\"'")
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return  # a template or a test of the parser, not a program
