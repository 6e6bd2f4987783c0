"""KV events as vLLM and SGLang publish them over ZeroMQ, in msgpack: `[timestamp, events, rank]`.

An event is a map with its `type` (vLLM 0.32) or an array that begins with it (SGLang, older vLLM), whose last fields
may be missing. Engines add fields at any time, so what is not known is passed over, and what cannot be read
costs its event and not the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from extproc.kv_events import Batch, Cleared, Event, KvEventsError, Removed, Stored, Tier, Unusable, namespace

_Hash = int | bytes


class _StoredMap(Struct, tag_field="type", tag="BlockStored", gc=False):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None
    locality: str | None = None


class _RemovedMap(Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _ClearedMap(Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


class _StoredArray(_StoredMap, array_like=True, tag_field="type", tag="BlockStored", gc=False):
    pass


class _RemovedArray(_RemovedMap, array_like=True, tag_field="type", tag="BlockRemoved", gc=False):
    pass


class _ClearedArray(_ClearedMap, array_like=True, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


_Maps = _StoredMap | _RemovedMap | _ClearedMap
_Arrays = _StoredArray | _RemovedArray | _ClearedArray


class _BatchOfMaps(Struct, array_like=True, gc=False):
    timestamp_s: float
    events: list[_Maps]
    rank: int | None = None


class _BatchOfArrays(Struct, array_like=True, gc=False):
    timestamp_s: float
    events: list[_Arrays]
    rank: int | None = None


class _AnyBatch(Struct, array_like=True, gc=False):
    timestamp_s: float
    events: list[Any]
    rank: Any = None


_read_maps = msgspec.msgpack.Decoder(_BatchOfMaps).decode
_read_arrays = msgspec.msgpack.Decoder(_BatchOfArrays).decode
_read_any = msgspec.msgpack.Decoder(_AnyBatch).decode

_TIERS = {
    "GPU": Tier.DEVICE,
    "DEVICE": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "CPU_TIER1": Tier.HOST,
    "CPU_TIER2": Tier.DISK,
    "DISK": Tier.DISK,
    "NVME": Tier.DISK,
    "STORAGE": Tier.DISK,
}
"""By the engines' names of media."""

_LOW_64 = (1 << 64) - 1
_NOT_LOCAL = Unusable("not_local")
_MALFORMED = Unusable("malformed")
_CLEARED = Cleared()


def decode_batch(sequence: int, data: bytes) -> Batch:
    """One message's last frame. Raises KvEventsError. Hot: 4 us for an event of two blocks."""
    batch: _BatchOfMaps | _BatchOfArrays
    try:
        batch = _read_maps(data)
    except msgspec.DecodeError:
        try:
            batch = _read_arrays(data)
        except msgspec.DecodeError:
            return _decode_leniently(sequence, data)
    return Batch(sequence, batch.timestamp_s, [_event(event) for event in batch.events], batch.rank)


def _decode_leniently(sequence: int, data: bytes) -> Batch:
    try:
        batch = _read_any(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise KvEventsError(f"batch {sequence} of {len(data)} bytes cannot be read: {error}") from error
    rank = batch.rank if isinstance(batch.rank, int) else None
    return Batch(sequence, batch.timestamp_s, [_convert(event) for event in batch.events], rank)


def _convert(event: Any) -> Event:
    """One event whose neighbours, or itself, are not as they should be."""
    as_map = isinstance(event, dict)
    kind = event.get("type") if as_map else event[0] if isinstance(event, list) and event else None
    if not isinstance(kind, str):
        return _MALFORMED
    if kind not in ("BlockStored", "BlockRemoved", "AllBlocksCleared"):
        return Unusable("unknown_type")
    if kind == "BlockStored":
        _unpair(event, "token_ids" if as_map else 3)
    try:
        return _event(msgspec.convert(event, _Maps if as_map else _Arrays))
    except msgspec.ValidationError:
        return _MALFORMED


def _unpair(event: Any, key: str | int) -> None:
    """Speculative decoding hashes pairs of a token and the next: the tokens are the first ones."""
    try:
        tokens = event[key]
        if isinstance(tokens[0], list):
            event[key] = [first for first, _ in tokens]
    except (LookupError, TypeError, ValueError):
        pass  # what is wrong with it is found next


def _event(event: _Maps | _Arrays) -> Event:
    if isinstance(event, _StoredMap):
        return _stored(event)
    if isinstance(event, _RemovedMap):
        tier = _tier(event.medium, event.locality)
        if tier is None:
            return _NOT_LOCAL
        return Removed(_folded(event.block_hashes), tier, event.group_idx or 0)
    return _CLEARED


def _stored(event: _StoredMap) -> Event:
    hashes = event.block_hashes
    tier = _tier(event.medium, event.locality)
    if not hashes:
        return _MALFORMED
    if tier is None:
        return _NOT_LOCAL
    parent = event.parent_block_hash
    lora = event.lora_name or ("" if event.lora_id is None else str(event.lora_id))
    salt, ours = _keys(event.extra_keys, event.lora_name, parent) if event.extra_keys else ("", None)
    return Stored(
        _folded(hashes),
        None if parent is None else _fold(parent),
        event.token_ids,
        event.block_size,
        tier,
        event.group_idx or 0,
        event.kv_cache_spec_kind,
        namespace(lora, salt),
        ours,
    )


def _tier(medium: str | None, locality: str | None) -> Tier | None:
    """None: not this engine's own."""
    if locality is not None and locality.upper() != "LOCAL":
        return None
    return Tier.DEVICE if medium is None or medium == "GPU" else _TIERS.get(medium.upper())


def _keys(extra_keys: Sequence[Any], lora: str | None, parent: _Hash | None) -> tuple[str, int | None]:
    """The salt, which is a text beside the adapter's name and only with a prompt's first block, and how many blocks
    depend on nothing more."""
    salt = ""
    for number, keys in enumerate(extra_keys):
        for key in keys if isinstance(keys, list) else ():
            if isinstance(key, str) and key == lora:
                continue
            if isinstance(key, str) and number == 0 and parent is None and not salt:
                salt = key
            else:
                return salt, number
    return salt, None


def _folded(hashes: list[_Hash]) -> list[int]:
    return [block if isinstance(block, int) else _fold(block) for block in hashes]


def _fold(block: _Hash) -> int:
    """A digest's last eight bytes, which is what engines send themselves where they send numbers."""
    return block if isinstance(block, int) else int.from_bytes(block[-8:], "big") & _LOW_64
