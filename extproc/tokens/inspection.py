"""Whether the fast library encodes a tokenizer exactly as the reference library does, and that tokenizer's table.

Runs in a child process: loading the reference library holds the interpreter lock for hundreds of milliseconds.

The fast library (fastokens) differs from the reference (tokenizers) in few known ways. What a probe would only find by
luck is found by rule, from the file; everything else by encoding probes with both. Some rules concern the whole file,
some only texts with certain characters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from extproc.token_ids import MAX_IDS
from extproc.tokens.cache_boundaries import isolated
from extproc.tokens.fast_library import seconds_of_lock
from extproc.tokens.probes import probes
from extproc.tokens.source import MAX_JSON_BYTES
from extproc.tokens.tables import TableData, build_table

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CUTS_TRIED = 3  # for each added token; some tokenizers have more than a thousand
_AROUND = (
    "a",
    "word ",
    " word",
    "it's 12",
    "\n",
    "x\n\n",
    "你好",
    "naïve",
    "é\u0301",
    "<",
    "|>",
    "😀 ",
    "  ",
    "",
    "1",
    "▁_",
)

__all__ = ["Failure", "Inspection", "inspect_tokenizer"]


class Inspection(Struct, tag=True):
    """What the serving process needs to know of a tokenizer.json."""

    digest: str  # SHA-256 of the file, in hex
    table: TableData
    added_ids: dict[str, int]  # added tokens, special or not, by their text
    refusal: str | None  # why the fast library must not serve, None where it is exact
    suspect_characters: str = ""  # texts with one of these go to the reference library
    boundary_tokens: list[str] = []  # a text can be cut in front of these and its parts encoded one by one
    lock_s: float = 0.0
    """For how long the fast library holds the interpreter lock when it loads the file, measured."""
    template_ids: tuple[list[int], list[int]] | None = None
    """What stands before and after the ids of a text when special tokens are added; None where that is not all."""


class Failure(Struct, tag=True):
    """The tokenizer cannot be used at all."""

    message: str


def inspect_tokenizer(path: Path) -> Inspection | Failure:
    """Everything about one tokenizer.json. Slow (about 1 to 5 s for 128,000 to 250,000 tokens)."""
    from tokenizers import Tokenizer

    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            return Failure(f"{path} is larger than {MAX_JSON_BYTES} bytes")
        raw = path.read_bytes()
        text = raw.decode()
        spec = json.loads(text)
        reference = Tokenizer.from_str(text)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the library raises Exception itself, and panics that are no Exception
        return Failure(f"{path} is not a tokenizer that the library `tokenizers` loads: {error}")
    reference.no_truncation()
    reference.no_padding()
    try:
        table = build_table(reference, spec.get("decoder"))
    except (KeyError, TypeError, ValueError) as error:
        return Failure(f"the decoder of {path} cannot be used: {error}")
    if reference.get_vocab_size(with_added_tokens=True) > MAX_IDS:
        return Failure(f"the vocabulary of {path} has more than {MAX_IDS} tokens")
    refusal = _file_rules(spec) or _compare(text, reference)
    return Inspection(
        digest=hashlib.sha256(raw).hexdigest(),
        table=table,
        added_ids={token.content: at for at, token in reference.get_added_tokens_decoder().items()},
        refusal=refusal,
        lock_s=0.0 if refusal else seconds_of_lock(text),
        suspect_characters=_suspect_characters(spec),
        boundary_tokens=[token for at, token in enumerate(isolated(spec)) if _cuts(reference, token, at)],
        template_ids=_template_ids(reference),
    )


def _file_rules(spec: dict[str, Any]) -> str | None:
    model = spec.get("model") or {}
    if model.get("type", "BPE") != "BPE":
        return f"its model is {model.get('type')}, the fast library knows BPE only"
    if model.get("dropout"):
        return "its merges are dropped at random"
    orphan = _orphan(model.get("vocab") or {}, {token["content"] for token in spec.get("added_tokens") or ()})
    if orphan is not None:
        # Its characters never merge, but the fast library finds it where it stands between others of that sort.
        return f"its vocabulary has {orphan!r}, with characters that are no tokens themselves"
    if spec.get("pre_tokenizer") is None and (spec.get("decoder") or {}).get("type") == "ByteLevel":
        return "it is byte-level without a pre-tokenizer"
    for pattern in _patterns(spec.get("pre_tokenizer")):
        # The reference reads the second + as a repetition of the group, the fast library as possessive.
        if re.search(r"\{\d+(,\d*)?\}\+", pattern):
            return "a pattern of its pre-tokenizer has a counted repetition followed by +, which both read differently"
    return None


def _orphan(vocabulary: dict[str, int], added: set[str]) -> str | None:
    """A token that no merges can make, because one of its characters is not in the vocabulary."""
    for token in vocabulary:
        if len(token) > 1 and token not in added and not all(character in vocabulary for character in token):
            return token
    return None


def _suspect_characters(spec: dict[str, Any]) -> str:
    """The long s folds to s: contraction groups that ignore case may split such words differently."""
    ignores_case = any("(?i:" in pattern for pattern in _patterns(spec.get("pre_tokenizer")))
    return "\u017f" if ignores_case else ""


def _cuts(reference: Tokenizer, token: str, at: int) -> bool:
    """Whether texts may be cut in front of an added token, tried with texts that `at` chooses."""
    for shift in range(_CUTS_TRIED):
        before = _AROUND[(at + shift) % len(_AROUND)]
        after = token + _AROUND[(at + 3 * shift + 1) % len(_AROUND)]
        whole, left, right = (
            reference.encode(text, add_special_tokens=False).ids for text in (before + after, before, after)
        )
        if whole != left + right:
            return False
    return True


def _template_ids(reference: Tokenizer) -> tuple[list[int], list[int]] | None:
    found: tuple[list[int], list[int]] | None = None
    for text in _AROUND:
        bare = reference.encode(text, add_special_tokens=False).ids
        full = reference.encode(text, add_special_tokens=True).ids
        if not bare:
            continue
        starts = [at for at in range(len(full) - len(bare) + 1) if full[at : at + len(bare)] == bare]
        candidates = [(full[:at], full[at + len(bare) :]) for at in starts]
        if found is None:
            found = candidates[0] if candidates else None
        if found not in candidates:
            return None
    return found


def _patterns(spec: Any) -> Iterator[str]:
    if isinstance(spec, dict):
        for key, value in spec.items():
            if key == "Regex" and isinstance(value, str):
                yield value
            else:
                yield from _patterns(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _patterns(value)


def _compare(text: str, reference: Tokenizer) -> str | None:
    try:
        from fastokens import Tokenizer as FastTokenizer
    except ImportError:
        return "the fast library has no build for this platform"
    try:
        fast = FastTokenizer.from_json_str(text)
    except ValueError as error:
        return f"the fast library does not load it ({error})"
    fast.no_truncation()
    fast.no_padding()
    added = {token["content"]: token["id"] for token in fast.added_tokens()}
    expected = {token.content: at for at, token in reference.get_added_tokens_decoder().items()}
    if added != expected:
        return "both libraries number its added tokens differently"
    for probe in probes(list(expected)):
        try:
            ids = fast.encode(probe).ids
        except ValueError:
            continue  # at serving time such a text goes to the reference library
        if ids != reference.encode(probe, add_special_tokens=False).ids:
            return f"both libraries encode the probe {probe[:60]!r} differently"
    return None
