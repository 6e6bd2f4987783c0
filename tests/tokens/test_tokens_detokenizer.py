"""Streamed text is what decoding all ids at once gives, for every kind of vocabulary and any chunks."""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokens_vocabularies import KINDS, deepseek_folder

from extproc.tokens.detokenizer import DetokenizerTable
from extproc.tokens.tables import TableData, build_table

NOT_STREAMED = {"word_suffixes", "metaspace_never"}


@functools.cache
def vocabulary(kind: str) -> tuple[Tokenizer, DetokenizerTable]:
    if kind == "deepseek":
        spec = json.loads((deepseek_folder() / "tokenizer.json").read_text("utf-8"))
    else:
        spec = KINDS[kind]()
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    shipped = msgspec.msgpack.encode(build_table(tokenizer, spec["decoder"]))
    return tokenizer, DetokenizerTable(msgspec.msgpack.decode(shipped, type=TableData))


def streamed(table: DetokenizerTable, ids: list[int], cuts: list[int], skip_special: bool) -> str:
    detokenizer = table.detokenizer(skip_special)
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [detokenizer.feed(ids[start:end]) for start, end in pairwise(edges)]
    return "".join(pieces) + detokenizer.finish()


@pytest.mark.parametrize("kind", [*KINDS, "deepseek"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_chunks_of_any_ids_give_the_full_decoding(kind: str, data: st.DataObject) -> None:
    tokenizer, table = vocabulary(kind)
    # Half of the vocabulary's ids are near its ends, where special and byte tokens are; some ids do not exist.
    any_id = st.integers(0, table.size + 3) | st.integers(0, 300) | st.integers(table.size - 10, table.size + 3)
    ids = data.draw(st.lists(any_id, max_size=30))
    cuts = data.draw(st.lists(st.integers(0, 30), max_size=30))
    skip = data.draw(st.booleans())
    assert streamed(table, ids, cuts, skip) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", [*KINDS, "deepseek"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40) | st.sampled_from(["你好，世界 😀", " two  spaces ", "it's walked. naïve ▁x"]))
def test_the_ids_of_a_text_stream_one_by_one_as_they_decode_together(kind: str, text: str) -> None:
    tokenizer, table = vocabulary(kind)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert streamed(table, ids, list(range(len(ids))), False) == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", list(KINDS))
def test_only_chains_without_a_table_hold_text_back_to_the_end(kind: str) -> None:
    _, table = vocabulary(kind)
    assert table.streams == (kind not in NOT_STREAMED)


def test_a_character_split_over_tokens_comes_with_its_last_byte() -> None:
    tokenizer, table = vocabulary("byte_level")
    ids = [tokenizer.token_to_id(name) for name in ("ð", "Ł", "ĺ", "Ģ")]
    detokenizer = table.detokenizer(True)
    assert [detokenizer.feed([token_id]) for token_id in ids] == ["", "", "", "😀"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_at_the_end_becomes_a_replacement_character() -> None:
    tokenizer, table = vocabulary("byte_level")
    detokenizer = table.detokenizer(True)
    assert detokenizer.feed([tokenizer.token_to_id("ð")]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_one_bad_byte_spoils_its_whole_run_of_byte_tokens() -> None:
    tokenizer, table = vocabulary("byte_fallback_legacy")
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in (0xE4, 0xBD, 0xA0, 0xFF)]
    detokenizer = table.detokenizer(True)
    assert detokenizer.feed(ids) + detokenizer.finish() == "\ufffd" * 4


E_BYTES = [f"<0x{byte:02X}>" for byte in (0xE4, 0xBD, 0xA0)]
NOT_PREFIX_STABLE: list[tuple[str, list[str]]] = [
    ("byte_level", ["ð", "Ł", "ĺ", "Ģ"]),
    ("byte_fallback_legacy", [*E_BYTES, "<0xFF>"]),
    ("byte_fallback_metaspace", [*E_BYTES, "<0xFF>"]),
    ("byte_fallback_unstripped", [*E_BYTES, "<0xFF>"]),
    ("unigram_byte_fallback", [*E_BYTES, "<0xFF>"]),
    ("metaspace_then_bytes", [*E_BYTES, "<0xFF>"]),
    ("strips_three", [*E_BYTES, "<0xFF>"]),
]


@pytest.mark.parametrize(("kind", "tokens"), NOT_PREFIX_STABLE, ids=[kind for kind, _ in NOT_PREFIX_STABLE])
def test_no_text_is_given_that_later_tokens_would_change(kind: str, tokens: list[str]) -> None:
    tokenizer, table = vocabulary(kind)
    ids = [token_id for token in tokens if (token_id := tokenizer.token_to_id(token)) is not None]
    assert len(ids) == len(tokens)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    # Decoding a part of the ids gives what is no beginning of the whole.
    assert not all(whole.startswith(tokenizer.decode(ids[:end], skip_special_tokens=False)) for end in range(len(ids)))
    detokenizer = table.detokenizer(False)
    text = ""
    for token_id in ids:
        text += detokenizer.feed([token_id])
        assert whole.startswith(text)
    assert text + detokenizer.finish() == whole


def test_special_tokens_are_skipped_or_kept_as_asked() -> None:
    tokenizer, table = vocabulary("byte_level")
    ids = tokenizer.encode("<|im_start|>hello<tool>", add_special_tokens=False).ids
    assert table.detokenizer(True).feed(ids) == "hello<tool>"
    assert table.detokenizer(False).feed(ids) == "<|im_start|>hello<tool>"


BYTES_OF_TOKENS: list[tuple[str, str, bytes]] = [
    ("byte_level", "ð", b"\xf0"),
    ("byte_level", "Ġthe", b" the"),
    ("byte_level", "<|im_end|>", b"<|im_end|>"),
    ("byte_fallback_legacy", "<0xF0>", b"\xf0"),
    ("byte_fallback_legacy", "▁the", b" the"),
    ("byte_fallback_legacy", "</s>", b"</s>"),
    ("unigram", "▁the", b" the"),
    ("wordpiece", "the", b" the"),
    ("wordpiece", "##s", b"s"),
]


@pytest.mark.parametrize(("kind", "token", "expected"), BYTES_OF_TOKENS)
def test_a_token_has_its_exact_bytes(kind: str, token: str, expected: bytes) -> None:
    tokenizer, table = vocabulary(kind)
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    assert table.token_bytes(token_id) == expected


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**32 - 1])
def test_an_unknown_id_has_no_bytes_and_no_text(token_id: int) -> None:
    for kind in ("byte_level", "byte_fallback_legacy", "word_suffixes"):
        _, table = vocabulary(kind)
        assert table.token_bytes(token_id) == b""


def test_a_decoder_on_which_the_library_itself_fails_is_refused_at_load() -> None:
    strip = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
    spec: dict[str, Any] = {**KINDS["byte_fallback_legacy"](), "decoder": strip}
    with pytest.raises(ValueError, match="strips characters at the end"):
        build_table(Tokenizer.from_str(json.dumps(spec)), strip)


def test_an_id_far_beyond_the_vocabulary_is_refused_at_load() -> None:
    spec: dict[str, Any] = KINDS["unigram"]()
    tokenizer = Tokenizer.from_str(json.dumps(spec))

    class Sparse:
        def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
            return {"a": 2**31}

        def get_added_tokens_decoder(self) -> dict[int, Any]:
            return tokenizer.get_added_tokens_decoder()

    with pytest.raises(ValueError, match="ids up to"):
        build_table(Sparse(), spec["decoder"])  # type: ignore[arg-type]
