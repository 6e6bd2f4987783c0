"""The KV cache against what is true of every block cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from extproc.simulator.kv_cache import KvCache

BLOCK = 4
# Few different tokens, so that prefixes are shared often.
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=40)


def computed(cache: KvCache, prompt: list[int]):
    lease = cache.lease(prompt)
    cache.extend(lease)
    return lease


@given(prompts, prompts)
def test_matches_exactly_the_shared_full_blocks_before_the_last_token(first, second):
    cache = KvCache(10_000, BLOCK)
    cache.release(computed(cache, first))
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    expected = min(shared // BLOCK, (len(second) - 1) // BLOCK) * BLOCK
    # Only what the first prompt filled can be shared.
    assert cache.cached_tokens(second) == min(expected, len(first) // BLOCK * BLOCK)
    assert cache.lease(second).cached_tokens == cache.cached_tokens(second)


@given(prompts, st.lists(st.integers(0, 1), min_size=1, max_size=40), st.integers(1, 7))
def test_tokens_may_come_in_any_pieces(prompt, generated, piece):
    whole, pieces = KvCache(10_000, BLOCK), KvCache(10_000, BLOCK)
    whole.release(computed(whole, prompt + generated))
    lease = computed(pieces, prompt)
    for start in range(0, len(generated), piece):
        pieces.extend(lease, generated[start : start + piece])
    pieces.release(lease)
    longer = [*prompt, *generated, 0]
    assert pieces.cached_tokens(longer) == whole.cached_tokens(longer) == len(prompt + generated) // BLOCK * BLOCK
    assert pieces.blocks == whole.blocks


def test_least_recently_released_goes_first_and_the_tail_before_the_head():
    cache = KvCache(4 * BLOCK, BLOCK)
    old, new = [1] * 8, [2] * 8
    cache.release(computed(cache, old))
    cache.release(computed(cache, new))
    cache.release(computed(cache, [3] * 4))
    assert cache.cached_tokens([*old, 0]) == BLOCK
    assert cache.cached_tokens([*new, 0]) == 2 * BLOCK


def test_use_protects_from_eviction():
    cache = KvCache(4 * BLOCK, BLOCK)
    old, new = [1] * 8, [2] * 8
    cache.release(computed(cache, old))
    cache.release(computed(cache, new))
    cache.release(computed(cache, [*old, 0]))
    cache.release(computed(cache, [3] * 8))
    assert cache.cached_tokens([*old, 0]) == 2 * BLOCK
    assert cache.cached_tokens([*new, 0]) == 0


def test_prompt_that_was_not_computed_is_not_there():
    cache = KvCache(100 * BLOCK, BLOCK)
    lease = cache.lease([1] * 40)
    cache.release(lease)
    assert cache.blocks == 0


def test_last_block_of_a_repeated_prompt_is_a_second_copy():
    cache = KvCache(100 * BLOCK, BLOCK)
    for _ in range(2):
        cache.release(computed(cache, [1] * 8))
    assert cache.blocks == 3


class Cache(RuleBasedStateMachine):
    """Sequences that come, grow, fork and go, in a cache that is too small for them."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KvCache(8 * BLOCK, BLOCK)
        self.live = []

    @rule(target=leases, prompt=prompts)
    def begin(self, prompt):
        expected = self.cache.cached_tokens(prompt)
        lease = self.cache.lease(prompt)
        assert lease.cached_tokens == expected <= (len(prompt) - 1) // BLOCK * BLOCK
        self.cache.extend(lease)
        self.live.append(lease)
        return lease

    @rule(lease=leases, tokens=st.lists(st.integers(0, 1), max_size=12))
    def grow(self, lease, tokens):
        self.cache.extend(lease, tokens)

    @rule(target=leases, lease=leases)
    def fork(self, lease):
        copy = self.cache.fork(lease)
        self.live.append(copy)
        return copy

    @rule(lease=consumes(leases))
    def end(self, lease):
        self.live.remove(lease)
        self.cache.release(lease)

    @precondition(lambda self: not self.live)
    @rule()
    def clear(self):
        assert self.cache.clear()
        assert self.cache.blocks == 0

    @invariant()
    def stays_within_its_size_and_keeps_what_is_held(self):
        held = {block for lease in self.live for block in lease.blocks}
        assert self.cache.held_blocks == len(held)
        assert len(held) <= self.cache.blocks <= self.cache.capacity_blocks

    @invariant()
    def is_not_cleared_under_a_sequence(self):
        if any(lease.blocks for lease in self.live):
            assert not self.cache.clear()


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
