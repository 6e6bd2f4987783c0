"""What events make known of a cache, against a model that remembers whole prompts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.kv_events import Batch, Cleared, Removed, Stored, Tier, Unusable
from extproc.routing.blocks import extend, root
from extproc.routing.index import PrefixIndex
from extproc.routing.kv_events import Figures, Rank, Step
from extproc.token_ids import TokenIds

OURS = 16


@dataclass
class Held:
    """In place of the index: what it was told, which must make sense."""

    blocks: set[int] = field(default_factory=set)
    clears: int = 0

    def stored(self, slot, hashes):
        for block in hashes:
            assert block not in self.blocks
            self.blocks.add(block)

    def removed(self, slot, hashes):
        for block in hashes:
            self.blocks.remove(block)

    def clear_precise(self, slot):
        self.blocks.clear()
        self.clears += 1

    clear = clear_precise


def chain(path, namespace=""):
    """Our hash of the last whole block of these tokens."""
    return extend(root(namespace, OURS), TokenIds.of(path).varints, OURS)[-1]


def rank_of(held, **options):
    return Rank(held, None, OURS, options.pop("figures", Figures()), **options)


class Against(RuleBasedStateMachine):
    """Events in any order, sensible or not."""

    @initialize(multiple=st.sampled_from([1, 2, 4]))
    def begin(self, multiple):
        self.page = OURS // multiple
        self.held = Held()
        self.figures = Figures()
        self.rank = rank_of(self.held, figures=self.figures)
        self.sequence = -1
        self.copies: dict[tuple[int, ...], Counter] = {}  # by all tokens up to the page's end

    def engine_hash(self, path):
        return hash(("engine", path))

    def known(self, path):
        """It has a copy, or is kept for a page that builds on it within our block."""
        if self.copies.get(path):
            return True
        at = len(path) // OURS * OURS + OURS  # end of our block
        return len(path) % OURS > 0 and any(
            len(path) < len(other) <= at and other[: len(path)] == path and counts
            for other, counts in self.copies.items()
        )

    def send(self, *events):
        self.sequence += 1
        assert self.rank.take(Batch(self.sequence, 0.0, events)) is Step.NEXT

    @rule(
        picks=st.lists(st.integers(0, 1), min_size=1, max_size=8),
        begin=st.integers(0, 4),
        tier=st.sampled_from([Tier.DEVICE, Tier.HOST]),
    )
    def store(self, picks, begin, tier):
        pages = [(pick,) * self.page for pick in picks]
        begin = min(begin, len(pages) - 1)
        before = sum(pages[:begin], ())
        paths = [sum(pages[: number + 1], ()) for number in range(begin, len(pages))]
        self.send(
            Stored(
                [self.engine_hash(path) for path in paths],
                self.engine_hash(before) if before else None,
                [token for path in paths for token in path[-self.page :]],
                self.page,
                tier,
            )
        )
        if not before or self.known(before):
            for path in paths:
                self.copies.setdefault(path, Counter())[tier] += 1

    @rule(
        picks=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=4),
        tier=st.sampled_from([Tier.DEVICE, Tier.HOST]),
    )
    def remove(self, picks, tier):
        paths = [sum([(pick,) * self.page for pick in each], ()) for each in picks]
        self.send(Removed([self.engine_hash(path) for path in paths], tier))
        for path in paths:
            counts = self.copies.get(path)
            if counts and counts[tier]:
                counts[tier] -= 1
                self.copies[path] = +counts

    @rule()
    def clear(self):
        self.send(Cleared())
        self.copies.clear()

    @rule(skipped=st.integers(1, 3))
    def lose(self, skipped):
        expected = Step.NEXT if self.rank.last is None else Step.GAP  # what comes first is not known to be late
        self.sequence += skipped
        assert self.rank.take(Batch(self.sequence + 1, 0.0, (Cleared(),))) is expected
        self.rank.void("gap")
        self.copies.clear()

    @rule()
    def repeat(self):
        if self.rank.last is not None:
            assert self.rank.take(Batch(self.sequence, 0.0, (Cleared(),))) is Step.REPEATED
            assert self.rank.take(Batch(self.sequence, 0.0, (), load_only=True)) is Step.LOAD

    @invariant()
    def holds_what_has_all_of_its_pages(self):
        if not hasattr(self, "held"):
            return
        whole = {path for path, counts in self.copies.items() if counts}
        expected = {
            chain(path)
            for path in whole
            if len(path) % OURS == 0 and all(path[: len(path) - back] in whole for back in range(0, OURS, self.page))
        }
        assert self.held.blocks == expected


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def stored(path, parent=None, page=OURS, **options):
    return Stored([hash(tuple(path))], parent, path[-page:], page, **options)


def test_an_event_with_an_unknown_parent_is_counted_and_dropped():
    held, figures = Held(), Figures()
    rank = rank_of(held, figures=figures)
    rank.take(Batch(5, 0.0, [stored([1] * 16, parent=77)]))
    assert not held.blocks
    assert figures.dropped == {"unknown_parent": 1}


def test_other_kinds_of_attention_say_nothing_and_their_groups_are_remembered():
    held, figures = Held(), Figures()
    rank = rank_of(held, figures=figures)
    path = [1] * 16
    rank.take(
        Batch(
            0,
            0.0,
            [
                stored(path, group=0, kind="sliding_window"),
                stored(path, group=1, kind="full_attention"),
                Removed([hash(tuple(path))], group=0),
            ],
        )
    )
    assert held.blocks == {chain(path)}
    assert figures.dropped == {"other_attention": 2}


def test_groups_and_tiers_count_for_themselves():
    held = Held()
    rank = rank_of(held)
    path = [1] * 16
    block = hash(tuple(path))
    rank.take(
        Batch(0, 0.0, [stored(path, group=0, kind="full_attention"), stored(path, group=1, kind="mla_attention")])
    )
    rank.take(Batch(1, 0.0, [stored(path, tier=Tier.HOST), Removed([block], group=0), Removed([block], group=1)]))
    assert held.blocks == {chain(path)}
    rank.take(Batch(2, 0.0, [Removed([block], tier=Tier.HOST)]))
    assert not held.blocks


def test_a_namespace_counts_from_the_first_block_on():
    held = Held()
    rank = rank_of(held)
    first, both = [1] * 16, [1] * 16 + [2] * 16
    rank.take(Batch(0, 0.0, [stored(first, namespace="x"), stored(both, parent=hash(tuple(first)))]))
    assert held.blocks == {chain(first, "x"), chain(both, "x")}


def test_blocks_that_depend_on_media_are_dropped_with_all_after_them():
    held, figures = Held(), Figures()
    rank = rank_of(held, figures=figures)
    event = Stored([1, 2, 3], None, [1] * 48, OURS, ours=1)
    rank.take(Batch(0, 0.0, [event, Stored([4], 3, [1] * 16, OURS)]))
    assert held.blocks == {chain([1] * 16)}
    assert figures.dropped == {"foreign_keys": 2, "unknown_parent": 1}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Stored([1], None, [1] * 15, OURS), "malformed"),
        (Stored([1], None, [1] * 5, 5), "block_size"),
        (Stored([1], None, [1] * 32, 32), "block_size"),
        (Stored([1], None, [1] * 16, 0), "block_size"),
        (Stored([1], None, [1 << 31] * 16, OURS), "token_ids"),
        (Stored([1], None, [-1] * 16, OURS), "token_ids"),
        (Removed([1]), "unknown_block"),
        (Removed([1], group=1 << 40), "unknown_block"),
        (Unusable("not_local"), "not_local"),
    ],
)
def test_what_makes_no_sense_is_counted_and_changes_nothing(event, reason):
    held, figures = Held(), Figures()
    rank = rank_of(held, figures=figures)
    assert rank.take(Batch(0, 0.0, [event])) is Step.NEXT
    assert not held.blocks
    assert figures.dropped == {reason: 1}


@pytest.mark.parametrize("page", [16, 4])
def test_an_engine_cannot_make_more_known_than_the_limit(page):
    held, figures = Held(), Figures()
    rank = rank_of(held, figures=figures, most_blocks=100)
    for number in range(300):
        path = [number] * page
        rank.take(Batch(number, 0.0, [stored(path, page=page)]))
    assert figures.dropped == {"full": 200}
    for number in range(100):
        rank.take(Batch(300 + number, 0.0, [Removed([hash((number,) * page)])]))
    assert not held.blocks
    rank.take(Batch(400, 0.0, [stored([999] * page, page=page)]))
    assert figures.dropped == {"full": 200}


def test_one_page_cannot_have_any_number_of_followers():
    held, figures = Held(), Figures()
    rank = rank_of(held, figures=figures)
    rank.take(Batch(0, 0.0, [Stored([-1], None, [7] * 8, 8)]))
    rank.take(Batch(1, 0.0, [Stored([number], -1, [number] * 8, 8) for number in range(1000)]))
    assert len(held.blocks) == 64
    assert figures.dropped == {"full": 936}
    rank.take(Batch(2, 0.0, [Removed([-1])]))
    assert not held.blocks


def test_knowledge_is_complete_from_the_first_batch_a_flush_or_a_snapshot_on():
    told = []
    rank = rank_of(Held(), completed=told.append)
    rank.take(Batch(0, 0.0, ()))
    assert told == [True]
    rank.void("ended")
    rank.take(Batch(7, 0.0, ()))
    assert told == [True, False]
    rank.take(Batch(8, 0.0, [Cleared()]))
    assert told == [True, False, True]
    rank.void("lost")
    rank.take(Batch(3, 0.0, [Cleared()], lacks=0))
    rank.take(Batch(4, 0.0, ()))
    assert told == [True, False, True, False, True]
    rank.take(Batch(9, 0.0, [Cleared()], lacks=2))
    assert not rank.complete


def test_a_number_that_goes_back_is_a_gap():
    rank = rank_of(Held())
    rank.take(Batch(5, 0.0, ()))
    assert rank.take(Batch(0, 0.0, ())) is Step.GAP


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
@settings(deadline=None)
def test_the_index_matches_what_events_stored(tokens):
    index = PrefixIndex(smallest_cells=1 << 10)
    slot = index.open("worker", 0, 0, 1000)
    rank = Rank(index, slot, OURS, Figures())
    prompt = [token for token in tokens for _ in range(8)]
    whole = len(prompt) // OURS
    rank.take(Batch(0, 0.0, [Stored(list(range(whole)), None, prompt[: whole * OURS], OURS)]))
    hashes = extend(root("", OURS), TokenIds.of(prompt).varints, OURS)
    assert index.match(hashes, [slot]).precise.get(slot, 0) == whole
    rank.void("lost")
    assert not index.match(hashes, [slot]).precise
