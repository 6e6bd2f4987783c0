"""A large tokenizer that comes while requests are served is loaded by a child, and gives the same ids."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tokenizers
from tokens_vocabularies import KINDS, byte_level, deepseek_folder, write

from extproc.tokens import inspection_wire
from extproc.tokens import tokenizer as tokenizer_module
from extproc.tokens.cache import TokenCache
from extproc.tokens.inspection import Failure, Inspection, inspect_tokenizer
from extproc.tokens.tokenizer import InvalidTextError, Tokenizer

TEXTS = ["", "Hello, world! It's 12345 <｜User｜>x 你好 😀 naïve", "\x00\u200d\U0010ffff", "A long text. " * 20_000]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_child_finds_arrives_as_it_was(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect_tokenizer(write(tmp_path, KINDS[kind]()) / "tokenizer.json")
    assert isinstance(found, Inspection)
    for chunk in (1, 7, 100_000):
        monkeypatch.setattr(inspection_wire, "_CHUNK", chunk)
        data = inspection_wire.encode_inspection(found)
        assert inspection_wire.decode_inspection(data) == found
    with pytest.raises(ValueError, match="ends early"):
        inspection_wire.decode_inspection(data[:-5])  # without the last frame
    assert inspection_wire.decode_inspection(inspection_wire.encode_inspection(Failure("no"))) == Failure("no")


@pytest.fixture
async def large() -> AsyncIterator[Tokenizer]:
    loaded = await Tokenizer.load(deepseek_folder(), TokenCache(1 << 20), beside_traffic=True)
    yield loaded
    await loaded.aclose()


async def test_a_large_tokenizer_encodes_in_its_child_as_the_reference_does(large: Tokenizer) -> None:
    reference = tokenizers.Tokenizer.from_file(str(deepseek_folder() / "tokenizer.json"))
    assert large.serves_with == "fastokens"
    for text in TEXTS:
        ids = reference.encode(text, add_special_tokens=False).ids
        assert list(await large.encode_async(text)) == ids
        known = large.encode(text)  # only what the cache holds is known at once
        assert known is None or list(known) == ids
    assert await large.names([0, 5]) == [reference.id_to_token(0), reference.id_to_token(5)]
    with pytest.raises(InvalidTextError):
        await large.encode_async("\ud800")


async def test_what_a_child_has_encoded_is_found_in_the_cache_of_this_process(large: Tokenizer) -> None:
    assert large.encode("Never seen") is None
    ids = await large.encode_async("Never seen")
    assert large.encode("Never seen") == ids


async def test_a_small_tokenizer_is_loaded_in_this_process(tmp_path: Path) -> None:
    small = await Tokenizer.load(write(tmp_path, byte_level()), beside_traffic=True)
    try:
        assert small.encode("the quick") is not None
    finally:
        await small.aclose()


async def test_a_text_that_the_fast_child_refuses_goes_to_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_module, "_LOCK_BUDGET_S", 0.0)
    spec = byte_level()
    vocabulary = spec["model"]["vocab"]
    # Without the letter that stands for byte 0x04 the fast library raises where the reference drops the byte.
    last = max(vocabulary, key=vocabulary.get)
    gap = vocabulary.pop("Ą")
    spec["model"]["merges"] = [pair for pair in spec["model"]["merges"] if last != "".join(pair)]
    vocabulary[last] = gap
    spec["added_tokens"] = []
    folder = write(tmp_path, spec)
    loaded = await Tokenizer.load(folder, beside_traffic=True)
    try:
        expected = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode("a\x04b").ids
        assert loaded.serves_with == "fastokens"
        assert loaded.encode("ab") is None
        assert list(await loaded.encode_async("a\x04b")) == expected
    finally:
        await loaded.aclose()
