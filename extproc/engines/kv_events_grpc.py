"""KV events of vLLM's gRPC servicers: `SubscribeKvEvents`, a stream of `KvEventBatch` (smg_grpc_proto)."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError
from smg_grpc_proto.generated import common_pb2

from extproc.kv_events import Batch, Cleared, Event, KvEventsError, Removed, Stored, Tier, Unusable, namespace

SUBSCRIBE = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"

LIVE_ONLY: bytes = common_pb2.SubscribeKvEventsRequest(start_sequence_number=0).SerializeToString()
"""The request: from now on. Servicers refuse any other start."""

MAX_BATCH_BYTES = 4 << 20
"""Of one message: a step of an engine with 16,384 tokens has 70 KB of events."""

_TIERS = {
    common_pb2.KV_CACHE_TIER_UNSPECIFIED: Tier.DEVICE,
    common_pb2.KV_CACHE_TIER_DEVICE: Tier.DEVICE,
    common_pb2.KV_CACHE_TIER_HOST: Tier.HOST,
    common_pb2.KV_CACHE_TIER_DISK: Tier.DISK,
}
_LEVELS = {0: Tier.DEVICE, 1: Tier.HOST, 2: Tier.DISK}
_REMOTE = common_pb2.KV_CACHE_LOCALITY_REMOTE
_NOT_LOCAL = Unusable("not_local")
_CLEARED = Cleared()
_parse = common_pb2.KvEventBatch.FromString


def decode_batch(data: bytes) -> Batch:
    """One message. Raises KvEventsError. Hot: 6 us for an event of two blocks."""
    try:
        message = _parse(data)
    except DecodeError as error:
        raise KvEventsError(f"a message of {len(data)} bytes is no KvEventBatch") from error
    load_only = message.load.load_only
    return Batch(
        message.sequence_number,
        message.timestamp,
        () if load_only else [_event(event) for event in message.events],
        message.dp_rank if message.HasField("dp_rank") else None,
        load_only,
        message.snapshot.unknown_before if message.HasField("snapshot") else None,
    )


def _event(event: Any) -> Event:
    kind = event.WhichOneof("data")
    if kind == "stored":
        return _stored(event.stored)
    if kind == "removed":
        return _removed(event.removed)
    return _CLEARED if kind == "cleared" else Unusable("unknown_type")


def _stored(stored: Any) -> Event:
    blocks = stored.blocks
    if not blocks:
        return Unusable("malformed")
    tier = _TIERS.get(stored.tier) if stored.HasField("tier") else _LEVELS.get(blocks[0].cache_level)
    if tier is None or stored.locality == _REMOTE:
        return _NOT_LOCAL
    hashes: list[int] = []
    tokens: list[int] = []
    ours = None
    for block in blocks:
        if ours is None and block.extra_keys and _has_other_keys(block.extra_keys, stored):
            ours = len(hashes)
        hashes.append(block.block_hash)
        tokens += block.token_ids
    parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
    return Stored(
        hashes,
        parent,
        tokens,
        blocks[0].block_size,
        tier,
        stored.group_idx,
        stored.kv_cache_spec_kind or None,
        "" if parent is not None else namespace(_lora(stored, blocks[0]), stored.cache_salt),
        ours,
    )


def _removed(removed: Any) -> Event:
    tier = _TIERS.get(removed.tier) if removed.HasField("tier") else _LEVELS.get(removed.cache_level)
    if tier is None or removed.locality == _REMOTE:
        return _NOT_LOCAL
    return Removed(list(removed.block_hashes), tier, removed.group_idx)


def _lora(stored: Any, block: Any) -> str:
    """The adapter's name, or its number where engines give no name."""
    name: str = stored.lora_name
    return name or (str(block.lora_id) if block.HasField("lora_id") else "")


def _has_other_keys(keys: Any, stored: Any) -> bool:
    """Whether a block's hash depends on more than tokens, adapter and salt: on media, say."""
    known = (stored.lora_name, stored.cache_salt)
    return any(key.WhichOneof("key") != "text" or key.text not in known for key in keys)
