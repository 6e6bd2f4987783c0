"""Chains of block hashes."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.routing import blocks
from extproc.token_ids import MAX_IDS, TokenIds

_IDS = st.lists(st.integers(0, MAX_IDS - 1), max_size=200)


@pytest.mark.parametrize(
    ("engine", "ours"), [(16, 16), (32, 32), (64, 64), (1, 16), (8, 16), (6, 18), (12, 24), (None, 32), (0, 32)]
)
def test_our_block_is_the_engine_s_or_its_smallest_multiple_from_16(engine: int | None, ours: int) -> None:
    assert blocks.block_tokens_for(engine) == ours


@pytest.mark.parametrize(("tokens", "count"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (240_000, 14_999)])
def test_the_last_token_is_always_computed(tokens: int, count: int) -> None:
    assert blocks.matchable_blocks(tokens, 16) == count
    assert len(blocks.chain(TokenIds.of(range(tokens)), 1, 16)) == count


def test_the_format_is_fixed() -> None:
    """Other processors and their shared state rely on these. Who changes them changes `FORMAT`."""
    assert blocks.FORMAT == 1
    root = blocks.root("model\0lora", 16)
    assert root == 0x130093FD211CB87B
    assert blocks.chain(TokenIds.of(range(100_000, 100_033)), root, 16) == array(
        "Q", [0x1F78F9351B84A085, 0x2643DDBD73055B13]
    )


@given(_IDS, st.integers(0, 2**64 - 1), st.sampled_from([16, 17, 64, 128]))
def test_a_block_s_hash_is_xxh3_of_its_varints_seeded_with_the_one_before(
    ids: list[int], parent: int, size: int
) -> None:
    hashes = blocks.extend(parent, TokenIds.of(ids).varints, size)
    seed, expected = parent, []
    for start in range(0, len(ids) - size + 1, size):
        varints = b"".join(bytes([i & 127 | 128, i >> 7 & 127 | 128, i >> 14 | 128, 0]) for i in ids[start:][:size])
        seed = xxh3_64_intdigest(varints, seed)
        expected.append(seed)
    assert hashes.tolist() == expected


@given(_IDS, st.integers(0, 200))
def test_a_chain_extended_in_two_steps_is_the_chain_of_all(ids: list[int], cut: int) -> None:
    cut -= cut % 16
    root = blocks.root("a", 16)
    whole = blocks.extend(root, TokenIds.of(ids).varints, 16)
    first = blocks.extend(root, TokenIds.of(ids[:cut]).varints, 16)
    rest = blocks.extend(first[-1] if first else root, TokenIds.of(ids[cut:]).varints, 16)
    assert first + rest == whole


def test_namespaces_and_block_sizes_share_nothing() -> None:
    roots = {blocks.root(name, size) for name in ("", "a", "b", "a\0b", "\ud800") for size in (16, 32)}
    assert len(roots) == 10
