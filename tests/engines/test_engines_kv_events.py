"""KV events in both wire forms, as engines of different ages write them, and what is no event."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import common_pb2 as pb

from extproc.engines import kv_events_grpc, kv_events_msgpack
from extproc.kv_events import Batch, Cleared, KvEventsError, Removed, Stored, Tier, Unusable, namespace

hashes = st.integers(-(2**63), 2**63 - 1)
tokens = st.integers(0, 2**32 - 1)
stored_events = st.builds(
    lambda ids, parent, each: Stored(ids, parent, each * len(ids), len(each), kind="full_attention"),
    st.lists(hashes, min_size=1, max_size=4),
    st.none() | hashes,
    st.lists(tokens, min_size=1, max_size=4),
)
events = st.one_of(stored_events, st.builds(Removed, st.lists(hashes, max_size=4)), st.just(Cleared()))
batches = st.builds(Batch, st.integers(0, 2**63), st.floats(0, 2e9), st.lists(events, max_size=4), st.integers(0, 7))


def as_message(batch: Batch) -> pb.KvEventBatch:
    message = pb.KvEventBatch(sequence_number=batch.sequence, timestamp=batch.timestamp_s, dp_rank=batch.rank)
    for event in batch.events:
        into = message.events.add()
        if isinstance(event, Stored):
            into.stored.parent_block_hash = event.parent or 0
            if event.parent is None:
                into.stored.ClearField("parent_block_hash")
            into.stored.kv_cache_spec_kind = event.kind
            size = event.block_tokens
            for number, block in enumerate(event.hashes):
                ids = event.tokens[number * size : (number + 1) * size]
                into.stored.blocks.add(block_hash=block, token_ids=ids, block_size=size)
        elif isinstance(event, Removed):
            into.removed.block_hashes.extend(event.hashes)
            into.removed.SetInParent()
        else:
            into.cleared.SetInParent()
    return message


def as_map(event):
    if isinstance(event, Stored):
        return {
            "type": "BlockStored",
            "block_hashes": event.hashes,
            "parent_block_hash": event.parent,
            "token_ids": event.tokens,
            "block_size": event.block_tokens,
            "lora_id": None,
            "medium": None,
            "lora_name": None,
            "kv_cache_spec_kind": event.kind,
            "invented_later": {"a": 1},
        }
    if isinstance(event, Removed):
        return {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": "GPU"}
    return {"type": "AllBlocksCleared"}


def as_array(event):
    if isinstance(event, Stored):
        layout = (event.hashes, event.parent, event.tokens, event.block_tokens, None, None, None, None, 0, event.kind)
        return ["BlockStored", *layout]
    return ["BlockRemoved", event.hashes] if isinstance(event, Removed) else ["AllBlocksCleared"]


@given(batches)
def test_every_form_says_the_same(batch):
    assert kv_events_grpc.decode_batch(as_message(batch).SerializeToString()) == batch
    for form in (as_map, as_array):
        payload = msgspec.msgpack.encode((batch.timestamp_s, [form(event) for event in batch.events], batch.rank))
        assert kv_events_msgpack.decode_batch(batch.sequence, payload) == batch


@given(st.binary(max_size=200))
def test_no_bytes_make_a_decoder_fail_in_any_other_way(data):
    for decode in (kv_events_grpc.decode_batch, lambda data: kv_events_msgpack.decode_batch(1, data)):
        with contextlib.suppress(KvEventsError):
            assert isinstance(decode(data), Batch)


nested = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
kinds = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
strange = st.one_of(
    nested,
    st.builds(lambda kind, rest: [kind, *rest], kinds, st.lists(nested, max_size=8)),
    st.builds(
        lambda kind, rest: {"type": kind, **rest},
        kinds,
        st.dictionaries(st.sampled_from(["block_hashes", "token_ids", "block_size", "parent_block_hash"]), nested),
    ),
)


@given(st.lists(strange, max_size=4))
def test_a_strange_event_costs_itself_and_no_other(strangers):
    good = Stored([1], None, [5, 6], 2, kind="full_attention")
    payload = msgspec.msgpack.encode((1.0, [*strangers, as_map(good)], 0))
    batch = kv_events_msgpack.decode_batch(3, payload)
    assert len(batch.events) == len(strangers) + 1
    assert batch.events[-1] == good


def decode(*raw, rank=0):
    return kv_events_msgpack.decode_batch(0, msgspec.msgpack.encode((1.0, raw, rank))).events


def test_digests_are_their_last_eight_bytes():
    digest = bytes(range(32))
    (event,) = decode({"type": "BlockRemoved", "block_hashes": [digest, 5]})
    assert event == Removed([int.from_bytes(digest[-8:], "big"), 5])


def test_pairs_of_tokens_are_their_first_ones():
    (event,) = decode(["BlockStored", [1], None, [[5, 6], [6, 7]], 2])
    assert event.tokens == [5, 6]


@pytest.mark.parametrize(
    ("medium", "locality", "tier"),
    [
        (None, None, Tier.DEVICE),
        ("GPU", "LOCAL", Tier.DEVICE),
        ("cpu", None, Tier.HOST),
        ("STORAGE", None, Tier.DISK),
        ("EXTERNAL", None, None),
        ("GPU", "REMOTE", None),
        ("tape", None, None),
    ],
)
def test_only_an_engines_own_memory_counts(medium, locality, tier):
    (event,) = decode({"type": "BlockRemoved", "block_hashes": [1], "medium": medium, "locality": locality})
    assert event == (Unusable("not_local") if tier is None else Removed([1], tier))


@pytest.mark.parametrize(
    ("keys", "parent", "space", "ours"),
    [
        (None, None, "", None),
        ([["adapter"], ["adapter"]], None, namespace("adapter", ""), None),
        ([["adapter", "salt"], ["adapter"]], None, namespace("adapter", "salt"), None),
        ([["adapter"], ["adapter", ["image", 3]]], None, namespace("adapter", ""), 1),
        ([[b"digest"], None], 7, namespace("adapter", ""), 0),
        ([["adapter", "else"], None], 7, namespace("adapter", ""), 0),
    ],
)
def test_keys_beside_the_tokens(keys, parent, space, ours):
    (event,) = decode(["BlockStored", [1, 2], parent, [5, 6], 1, None, "GPU", "adapter" if keys else None, keys])
    assert (event.namespace, event.ours) == (space, ours)


def test_keys_beside_the_tokens_in_messages():
    message = pb.KvEventBatch()
    stored = message.events.add().stored
    stored.lora_name, stored.cache_salt = "adapter", "salt"
    for number in range(3):
        stored.blocks.add(block_hash=number, token_ids=[1], block_size=1).extra_keys.add(text="adapter")
    stored.blocks[2].extra_keys.add().multimodal.identifier = "image"
    (event,) = kv_events_grpc.decode_batch(message.SerializeToString()).events
    assert (event.namespace, event.ours) == (namespace("adapter", "salt"), 2)


def test_tiers_of_messages():
    message = pb.KvEventBatch()
    for fields in ({"cache_level": 1}, {"tier": pb.KV_CACHE_TIER_EXTERNAL}, {"locality": pb.KV_CACHE_LOCALITY_REMOTE}):
        message.events.add().removed.MergeFrom(pb.KvBlocksRemoved(block_hashes=[1], **fields))
    assert kv_events_grpc.decode_batch(message.SerializeToString()).events == [
        Removed([1], Tier.HOST),
        Unusable("not_local"),
        Unusable("not_local"),
    ]


def test_a_record_of_the_load_has_no_events():
    message = pb.KvEventBatch(sequence_number=5)
    message.load.load_only = True
    batch = kv_events_grpc.decode_batch(message.SerializeToString())
    assert batch.load_only
    assert not batch.events


def test_namespaces_differ_wherever_their_parts_do():
    assert len({namespace(*parts) for parts in [("", ""), ("a", "b"), ("ab", ""), ("", "ab"), ("a", "")]}) == 5
