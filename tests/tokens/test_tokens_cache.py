"""What is cached is found again, gives the same ids, and stays inside its bound."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tokens_vocabularies import KINDS, byte_level, deepseek_folder, write

from extproc.token_ids import TokenIds
from extproc.tokens.cache import TextCache, TokenCache
from extproc.tokens.cache_boundaries import Boundaries, choose, isolated
from extproc.tokens.inspection import Inspection, inspect_tokenizer
from extproc.tokens.tokenizer import Tokenizer

MARKERS = {"deepseek": ("<｜User｜>", "<｜Assistant｜>"), "byte_level": ("<|im_start|>",), "wordpiece": ("[SEP]",)}
OTHERS = {"byte_fallback_legacy": ("<s>", "</s>"), "byte_fallback_metaspace": ("<|user|>",), "unigram": ("<s>",)}
PIECES = ["the quick", " ", "\n", "word", " 12", "é", "你好", "<|im_", "<｜", "start|>", "user", "it's", "<|im_start|"]


class Cached:
    """A tokenizer with a small cache on a loop of its own, cut at the given markers, beside the reference."""

    def __init__(self, kind: str, folder: Path, markers: tuple[str, ...]) -> None:
        self.markers = markers
        folder = deepseek_folder() if kind == "deepseek" else write(folder, KINDS[kind]())
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.store = TokenCache(40_000)
        self.tokenizer = self.runner.run(Tokenizer.load(folder, self.store))
        sample = "".join(f"{marker}message {at}" for at, marker in enumerate(markers))
        chosen = self.tokenizer.cut_like(sample, [f"message {at}" for at in range(len(markers))])
        assert chosen == markers
        self.reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.reference.no_truncation()
        self.reference.no_padding()

    def encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        return list(self.runner.run(self.tokenizer.encode_async(text)) if ids is None else ids)

    def expected(self, text: str) -> list[int]:
        return list(self.reference.encode(text, add_special_tokens=False).ids)

    def close(self) -> None:
        self.runner.run(self.tokenizer.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    @functools.cache
    def load(kind: str) -> Cached:
        opened.append(Cached(kind, tmp_path_factory.mktemp(kind), (MARKERS | OTHERS)[kind]))
        return opened[-1]

    opened: list[Cached] = []
    yield load
    for one in opened:
        one.close()


@pytest.mark.parametrize("kind", [*MARKERS, *OTHERS])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_sequence_of_prompts_gives_the_reference_ids(cached: Any, kind: str, data: st.DataObject) -> None:
    one = cached(kind)
    piece = st.sampled_from([*one.markers, *PIECES]) | st.text(max_size=8)
    prompts = data.draw(st.lists(st.lists(piece, max_size=12), min_size=1, max_size=5))
    for prompt in prompts:
        # A beginning, the whole, and the whole again: nothing, something and everything is known.
        for text in ("".join(prompt[: len(prompt) // 2]), "".join(prompt), "".join(prompt)):
            assert one.encode(text) == one.expected(text)
    assert one.store.used_bytes <= one.store.max_bytes


async def test_a_growing_conversation_is_encoded_once(tmp_path: Path) -> None:
    store = TokenCache(1 << 20)
    tokenizer = await Tokenizer.load(write(tmp_path, byte_level()), store)
    tokenizer.cut_like("<|im_start|>q", ["q"])
    try:
        text = ""
        for turn in range(20):
            text += f"<|im_start|>turn {turn}: the quick brown fox<|im_end|>\n"
            before = store.encoded_characters
            ids = tokenizer.encode(text)
            # All but the last message was known.
            assert store.encoded_characters - before == len(text) - text.rindex("<|im_start|>")
            assert ids is not None
            assert tokenizer.encode(text) == ids
        assert (store.lookups, store.hits, store.partial_hits) == (40, 20, 19)
    finally:
        await tokenizer.aclose()


async def test_each_system_prompt_is_learned_however_many_were_before(tmp_path: Path) -> None:
    store = TokenCache(1 << 20)
    tokenizer = await Tokenizer.load(write(tmp_path, byte_level()), store)
    tokenizer.cut_like("<|im_start|>q", ["q"])
    try:
        for system in range(8):
            prompt = f"<|im_start|>system {system} " + "rules and more rules " * 50 + "<|im_start|>user "
            tokenizer.encode(prompt + "first")
            before = store.encoded_characters
            tokenizer.encode(prompt + "second")
            assert store.encoded_characters - before == len("<|im_start|>user second")
    finally:
        await tokenizer.aclose()


async def test_two_tokenizers_share_a_store_but_no_ids(tmp_path: Path) -> None:
    store = TokenCache(1 << 20)
    small = await Tokenizer.load(write(tmp_path, byte_level()), store)
    large = await Tokenizer.load(deepseek_folder(), store)
    try:
        text = "the quick brown fox"
        first, second = small.encode(text), large.encode(text)
        assert first != second
        assert (small.encode(text), large.encode(text)) == (first, second)
        assert store.hits == 2
    finally:
        await small.aclose()
        await large.aclose()


def test_a_day_of_unique_prompts_stays_inside_the_bound() -> None:
    store = TokenCache(1 << 20)
    cache = TextCache(store, Boundaries({"<m>": 7}))
    chance = random.Random(7)
    marker = TokenIds.of([7]).varints
    system = "<m>" + "system " * 400
    system_ids = marker + bytes(range(128, 130)) * 800
    for day in range(20_000):
        text = system + f"<m>{day} " + "x" * chance.randrange(2000)
        found = cache.find(text)
        rest = marker + TokenIds.of(range(chance.randrange(1, 500))).varints.replace(marker, b"")
        cache.add(found, rest if found.end else system_ids + rest)
        assert store.used_bytes <= store.max_bytes
    assert store.evictions > 15_000
    # What is used all the time was never driven out.
    assert cache.find(system).known == 2
    assert len(store) < 3000
    store.discard()
    assert (store.used_bytes, len(store), cache.find(system).known) == (0, 0, 0)


def test_where_too_little_is_found_texts_are_encoded_without_asking() -> None:
    store = TokenCache(1 << 20)
    # As with the fastest tokenizers, of which 4 ns a character are known.
    cache = TextCache(store, Boundaries({}), 4e-9)
    ids = TokenIds.of([1]).varints

    def asked(texts: int, different: int) -> int:
        count = 0
        for at in range(texts):
            if cache.pays():
                count += 1
                found = cache.find(f"text {at % different} {texts}")
                if not found.known:
                    cache.add(found, ids)
        return count

    assert asked(5000, 100) == 5000
    assert asked(5001, 6000) < 1100  # at most two trials
    assert asked(20_000, 100) > 10_000  # it was tried again


def test_a_text_that_would_drive_out_everything_is_not_kept() -> None:
    store = TokenCache(100_000)
    cache = TextCache(store, Boundaries({}))
    found = cache.find("x" * 20_000)
    cache.add(found, TokenIds.of([1]).varints)
    assert (len(store), store.used_bytes) == (0, 0)


def test_a_text_of_nothing_but_markers_is_cut_a_limited_number_of_times() -> None:
    text = "<m>" * 100_000
    for boundaries in (Boundaries({"<m>": 7}), Boundaries({"<m>": 7, "<n>": 8})):
        parts = boundaries.split(text)
        assert len(parts.texts) < 2000
        ids = TokenIds.of([7] * 100_000).varints
        pieces = boundaries.cut(ids, parts, 0)
        assert pieces is not None
        assert (b"".join(pieces), len(pieces)) == (ids, len(parts.texts))
        assert sum(boundaries.lengths(parts, 0)) == len(text)


def test_ids_without_the_texts_markers_are_not_learned() -> None:
    store = TokenCache(1 << 20)
    cache = TextCache(store, Boundaries({"<m>": 7}))
    cache.add(cache.find("a<m>b"), TokenIds.of([1, 2, 3]).varints)
    assert len(store) == 0


def _token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "normalized": False, **flags}


ISOLATED: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    ("plain", [_token("<a>"), _token("<b>")], ["<a>", "<b>"]),
    ("one inside the other", [_token("<a>"), _token("x<a>y"), _token("<c>")], ["<c>"]),
    ("one begins inside the other", [_token("<a><"), _token("<b>")], []),
    ("it overlaps with itself", [_token("aba")], []),
    ("spaces", [_token(" a"), _token("b\n")], []),
    ("flags", [_token("<a>", lstrip=True), _token("<b>", rstrip=True), _token("<c>", single_word=True)], []),
    ("found after normalizing", [_token("<a>", normalized=True)], []),
    ("declared twice", [_token("<a>"), _token("<a>")], []),
]


@pytest.mark.parametrize(("what", "tokens", "expected"), ISOLATED, ids=[row[0] for row in ISOLATED])
def test_only_tokens_that_are_found_anywhere_are_boundaries(
    what: str, tokens: list[dict[str, Any]], expected: list[str]
) -> None:
    assert isolated({"added_tokens": tokens, "normalizer": {"type": "NFC"}}) == expected


def test_boundaries_are_tried_with_the_reference(tmp_path: Path) -> None:
    spec = byte_level()
    result = inspect_tokenizer(write(tmp_path, spec) / "tokenizer.json")
    assert isinstance(result, Inspection)
    assert result.boundary_tokens == [token["content"] for token in spec["added_tokens"]]


CHOICES: list[tuple[str, str, tuple[str, ...]]] = [
    ("one for all messages", "<|s|>user\nQ<|e|>\n<|s|>bot\nA<|e|>", ("<|s|>",)),
    ("one for each role, alike", "<|u|>Q<|b|>A<|e|>", ("<|u|>", "<|b|>")),
    ("one for each role, not alike", "[I]Q</e>A", ("[I]", "</e>")),
    ("none", "user: Q bot: A", ()),
]


@pytest.mark.parametrize(("what", "sample", "expected"), CHOICES, ids=[row[0] for row in CHOICES])
def test_markers_are_those_before_messages(what: str, sample: str, expected: tuple[str, ...]) -> None:
    usable = ["<|s|>", "<|e|>", "<|u|>", "<|b|>", "[I]", "[/I]", "</e>"]
    assert choose(sample, ["Q", "A"], usable) == expected
