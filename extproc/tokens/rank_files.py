"""Vocabularies that are published as ranks rather than as tokenizer.json: tiktoken files, and Mistral's tekken.json.

Both are byte-level BPE: a vocabulary of byte strings, numbered in the order in which they were learned, and a pattern
that cuts text before. Written as a tokenizer.json they are inspected, compared and served like every other tokenizer.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from extproc.tokens.source import MAX_JSON_BYTES, TokenizerError, read_json_object, read_text
from extproc.tokens.tables import BYTE_CHARACTERS

__all__ = ["TEKKEN", "find_rank_file", "tokenizer_json"]

TEKKEN = "tekken.json"

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _CL100K.replace("{1,3}", "")
_PATTERN_NAMES = frozenset({"pat_str", "PAT_STR", "pattern"})
_END = "<|endoftext|>"
_TEKKEN_SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip
"""Of the first tekken files, which do not list them."""
_FILL_IN_MIDDLE = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


class _Layout(Struct, frozen=True):
    """What a file of ranks does not say itself."""

    pattern: str
    special: dict[str, int]
    normalizer: str | None = None  # NFC or none


_KNOWN = {
    "cl100k_base": _Layout(
        _CL100K,
        {_END: 100257, **{name: 100258 + at for at, name in enumerate(_FILL_IN_MIDDLE)}, "<|endofprompt|>": 100276},
    ),
    "o200k_base": _Layout(_O200K, {_END: 199999, "<|endofprompt|>": 200018}),
    "qwen": _Layout(
        _QWEN,
        {
            name: 151643 + at
            for at, name in enumerate((_END, "<|im_start|>", "<|im_end|>", *(f"<|extra_{at}|>" for at in range(205))))
        },
        "NFC",
    ),
}
"""By the file's name, for those which are published without the rest, or with the rest as program text only."""


def find_rank_file(folder: Path) -> Path | None:
    """The file of ranks in a folder without tokenizer.json; None where there is none."""
    tekken = folder / TEKKEN
    if tekken.is_file():
        return tekken
    found = sorted(folder.glob("*.tiktoken")) or [path for path in [folder / "tiktoken.model"] if path.is_file()]
    return found[0] if found else None


def tokenizer_json(path: Path) -> dict[str, Any]:
    """A file of ranks as the value of a tokenizer.json, with what the files beside it say. Takes seconds.

    Raises TokenizerError.
    """
    if path.name == TEKKEN or path.suffix == ".json":
        return _from_tekken(path)
    ranks = _read_tiktoken(path)
    return _byte_level_bpe(ranks, _layout(path, ranks))


def _read_tiktoken(path: Path) -> dict[bytes, int]:
    text = read_text(path, MAX_JSON_BYTES)
    if text is None:
        raise TokenizerError(f"no such file: {path}")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(f"line {number} of {path} is not a token in base64 with its rank") from None
    return ranks


def _layout(path: Path, ranks: Mapping[bytes, int]) -> _Layout:
    known = _KNOWN.get(path.stem)
    config = read_json_object(path.parent / "tokenizer_config.json")
    pattern = config.get("pat_str") or next(_patterns_in_programs(path.parent), None) or (known and known.pattern)
    if not isinstance(pattern, str):
        raise TokenizerError(
            f"nothing beside {path} says by which pattern it cuts text (pat_str in tokenizer_config.json or in the "
            "model's own tokenizer program): name a folder with a tokenizer.json"
        )
    special = dict(known.special) if known and len(ranks) <= min(known.special.values()) else {}
    declared = config.get("added_tokens_decoder")
    if isinstance(declared, dict):
        for number, token in declared.items():
            if isinstance(token, dict) and isinstance(token.get("content"), str) and str(number).isdecimal():
                special[token["content"]] = int(number)
    return _Layout(pattern, special, known.normalizer if known else None)


def _patterns_in_programs(folder: Path) -> Iterator[str]:
    """Patterns that the model's own tokenizer program assigns, read as text: nothing of it is run."""
    for path in sorted(folder.glob("tokenization_*.py")):
        try:
            tree = ast.parse(read_text(path) or "")
        except (SyntaxError, ValueError, RecursionError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            else:
                continue
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if names & _PATTERN_NAMES and node.value is not None and (text := _literal(node.value)) is not None:
                yield text


def _literal(node: ast.expr) -> str | None:
    """A text that is written out, or a list of such that is joined."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "join"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.List | ast.Tuple)
    ):
        parts = [_literal(part) for part in node.args[0].elts]
        between = _literal(node.func.value)
        if between is not None and None not in parts:
            return between.join(part for part in parts if part is not None)
    return None


def _from_tekken(path: Path) -> dict[str, Any]:
    text = read_text(path, MAX_JSON_BYTES)
    try:
        value = json.loads(text or "")
        config = value["config"]
        count = int(config["default_num_special_tokens"])
        listed = value.get("special_tokens")
        special = (
            {str(token["token_str"]): int(token["rank"]) for token in listed}
            if listed
            else {token: at for at, token in enumerate(_TEKKEN_SPECIAL[:count])}
        )
        free = (at for at in range(count) if at not in set(special.values()))
        special |= {f"<SPECIAL_{at}>": at for at in free}
        inner = int(config["default_vocab_size"]) - count
        ranks = {
            base64.b64decode(token["token_bytes"]): count + int(token["rank"])
            for token in value["vocab"]
            if int(token["rank"]) < inner
        }
        return _byte_level_bpe(ranks, _Layout(str(config["pattern"]), special))
    except (KeyError, TypeError, ValueError, binascii.Error, RecursionError) as error:
        raise TokenizerError(f"{path} is not a tekken vocabulary: {type(error).__name__} {error}") from error


def _byte_level_bpe(ranks: Mapping[bytes, int], layout: _Layout) -> dict[str, Any]:
    # Ranks may begin behind the special tokens; of merges only their order counts.
    write = BYTE_CHARACTERS.__getitem__
    names = {token: "".join(map(write, token)) for token in ranks}
    vocab = {names[token]: rank for token, rank in ranks.items()} | layout.special
    taken = set(vocab.values())
    if len(taken) != len(vocab) or min(taken) < 0:
        raise TokenizerError("two tokens of the vocabulary have the same number, or one has none")
    # Without gaps, as the fast library needs it. No text becomes one of these: the pattern cuts them.
    vocab |= {f"<|unused_{at}|>": at for at in range(max(taken)) if at not in taken}
    normalizer = None if layout.normalizer is None else {"type": layout.normalizer}
    split = {"type": "Split", "pattern": {"Regex": _portable(layout.pattern)}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": at, "content": token, **flags}
            for token, at in sorted(layout.special.items(), key=lambda one: one[1])
        ],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "ignore_merges": True,  # a word that is a token is that token, however it came to be
            "vocab": dict(sorted(vocab.items(), key=lambda one: one[1])),
            "merges": [[names[left], names[right]] for left, right in _merges(ranks)],
        },
    }


def _merges(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Every pair that makes a token, in the order of the tokens: BPE by ranks joins whatever makes the lowest one."""
    for token in sorted(ranks, key=ranks.__getitem__):
        pairs = [
            (left, right)
            for at in range(1, len(token))
            if (left := token[:at]) in ranks and (right := token[at:]) in ranks
        ]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _portable(pattern: str) -> str:
    """Without a + behind a counted repetition, which tiktoken reads as possessive and `tokenizers` as a repetition.

    At the end of an alternative both mean the same; elsewhere TokenizerError.
    """
    if re.search(r"\{\d+(?:,\d*)?\}\+(?![|)]|$)", pattern):
        raise TokenizerError("the pattern of the vocabulary has a possessive repetition that cannot be converted")
    return re.sub(r"(\{\d+(?:,\d*)?\})\+", r"\1", pattern)
