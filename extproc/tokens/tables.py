"""Detokenizing tables: what each id contributes to the text, worked out from a tokenizer once, at load.

Built where the library `tokenizers` is loaded and shipped as plain data to the process that serves. A tokenizer's
decoder is a chain of stages over token strings. Nearly all chains fall into two kinds in which every token's
contribution can be tabled; the kind decides how `detokenizer` streams:

- `ByteTable`: byte-level vocabularies. Each token is some bytes, the text is their UTF-8 decoding.
- `TextTable`: each token is some text, which may be different at the start of the answer (WordPiece, Metaspace), or one
  byte of a run (byte fallback).
- `WholeTable`: any other chain, decoded as a whole at the end of the answer.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.decoders import Decoder

__all__ = ["BYTE_CHARACTERS", "ByteTable", "TableData", "TextTable", "WholeTable", "build_table", "make_decoder"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ANCHOR = "a"


class ByteTable(Struct, tag="bytes"):
    """`pieces[id]` are the token's bytes, empty for ids that nobody defines."""

    special: list[int]
    pieces: list[bytes]


class TextTable(Struct, tag="text"):
    """`rest[id]` is the token's text anywhere but at the start of the answer, None for ids that nobody defines."""

    special: list[int]
    rest: list[str | None]
    first: dict[int, str]  # the text at the start of the answer, where it is another
    byte_values: dict[int, int]  # tokens that are one byte of a run
    strip_character: str = ""  # leading characters to remove from the answer,
    strip_count: int = 0  # at most this many
    space_in_runs: str = ""  # the character that stands for a space also in the text of a run


class WholeTable(Struct, tag="whole"):
    """`names[id]` is the token's vocabulary form; `decoder` is the chain, as tokenizer.json writes it."""

    special: list[int]
    names: list[str | None]
    decoder: str


TableData = ByteTable | TextTable | WholeTable


def make_decoder(spec: Any) -> Decoder:
    """The library's decoder for the `decoder` value of a tokenizer.json. Imports `tokenizers`."""
    from tokenizers import Tokenizer

    empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    return Tokenizer.from_str(json.dumps({**empty, "decoder": spec})).decoder  # type: ignore[no-any-return]


def build_table(tokenizer: Tokenizer, spec: Any) -> TableData:
    """`spec` is the `decoder` value of the tokenizer's tokenizer.json. Raises ValueError where it cannot be served."""
    names = _names(tokenizer)
    special_texts = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    special = [at for at, name in enumerate(names) if name in special_texts]
    if spec is None:  # the library joins the tokens with spaces
        first = {at: name for at, name in enumerate(names) if name is not None}
        return TextTable(special, [None if name is None else " " + name for name in names], first, {})
    stages = list(_flatten(spec))
    if any(stage["type"] == "Strip" and stage["stop"] for stage in stages):
        raise ValueError("it strips characters at the end of tokens, on which the library itself fails for short ones")
    kinds = [stage["type"] for stage in stages]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return ByteTable(special, [b"" if name is None else token_bytes(name) for name in names])
    table = _text_table(special, names, stages)
    return WholeTable(special, names, json.dumps(spec)) if table is None else table


def _names(tokenizer: Tokenizer) -> list[str | None]:
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    ids.update(tokenizer.get_added_tokens_decoder())
    if not ids:
        return []
    highest = max(ids)
    if highest > 4 * len(ids) + 1_000_000:
        raise ValueError(f"the vocabulary has {len(ids)} tokens, but ids up to {highest}")
    return [tokenizer.id_to_token(at) for at in range(highest + 1)]


def _flatten(spec: Any) -> list[dict[str, Any]]:
    if spec["type"] == "Sequence":
        return [stage for inner in spec["decoders"] for stage in _flatten(inner)]
    return [spec]


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, as GPT-2 chose them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet.update({chr(256 + at): byte for at, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()
BYTE_CHARACTERS = {byte: character for character, byte in _ALPHABET.items()}
"""How byte-level vocabularies write each byte."""


def token_bytes(name: str) -> bytes:
    """The bytes of a byte-level token: by the alphabet if it spells the whole token, else the token's own UTF-8."""
    try:
        return bytes([_ALPHABET[character] for character in name])
    except KeyError:
        return name.encode()


def _text_table(special: list[int], names: list[str | None], stages: list[dict[str, Any]]) -> TextTable | None:
    """None where the chain is not of this kind.

    The chain must be: stages that look at one token and its position; byte fallback; Metaspace; Fuse; removal of
    leading characters. Each may be absent.
    """
    rest_of_chain = list(stages)
    strip_character, strip_count = "", 0
    if len(rest_of_chain) >= 2 and rest_of_chain[-1]["type"] == "Strip" and rest_of_chain[-2]["type"] == "Fuse":
        strip = rest_of_chain.pop()
        strip_character, strip_count = strip["content"], strip["start"]
    if rest_of_chain and rest_of_chain[-1]["type"] == "Fuse":
        rest_of_chain.pop()
    kinds = [stage["type"] for stage in rest_of_chain]
    at = kinds.index("ByteFallback") if "ByteFallback" in kinds else len(kinds)
    before, after = rest_of_chain[:at], rest_of_chain[at + 1 :]
    if any(stage["type"] not in ("Replace", "Metaspace", "WordPiece", "Strip") for stage in before):
        return None
    space_in_runs = ""
    if after:
        # Positions before and after byte fallback are not the same, so only one of both sides may look at them.
        if [stage["type"] for stage in after] != ["Metaspace"] or any(
            stage["type"] in ("Metaspace", "WordPiece") for stage in before
        ):
            return None
        space_in_runs = after[0]["replacement"]
    decode = make_decoder({"type": "Sequence", "decoders": before}).decode
    decode_after = make_decoder({"type": "Sequence", "decoders": after}).decode
    if space_in_runs and decode_after([space_in_runs]):
        return None  # it keeps the space at the start, which runs are not tabled for
    anchor_length = len(decode_after([decode([_ANCHOR])]))

    rest: list[str | None] = []
    first: dict[int, str] = {}
    byte_values: dict[int, int] = {}
    anchor_alone = decode([_ANCHOR])
    for token_id, name in enumerate(names):
        if name is None:
            rest.append(None)
            continue
        at_start, later = decode([name]), decode([_ANCHOR, name])[len(anchor_alone) :]
        if at < len(kinds):
            match = _BYTE_TOKEN.fullmatch(later)
            if match is not None or _BYTE_TOKEN.fullmatch(at_start) is not None:
                if match is None or at_start != later:
                    return None
                byte_values[token_id] = int(match[1], 16)
                rest.append(name)
                continue
            if after:
                at_start, later = decode_after([at_start]), decode_after([_ANCHOR, later])[anchor_length:]
        rest.append(later)
        if at_start != later:
            first[token_id] = at_start
    return TextTable(special, rest, first, byte_values, strip_character, strip_count, space_in_runs)
