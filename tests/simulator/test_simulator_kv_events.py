"""KV events of simulated engines, read with the protocol's own classes and a plain ZeroMQ socket."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import common_pb2

from extproc.simulator.faults import Faults
from extproc.simulator.kv_cache import KvCache

BLOCK = 16


class Mirror:
    """What a cache holds by what it reports: how many copies of each block."""

    def __init__(self) -> None:
        self.copies = Counter()

    def stored(self, block_hash, parent, tokens):
        self.copies[block_hash] += 1

    def removed(self, block_hash):
        self.copies[block_hash] -= 1

    def cleared(self):
        self.copies.clear()


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=40), max_size=12))
def test_reports_of_a_cache_add_up_to_what_it_holds(prompts):
    cache = KvCache(8 * 4, 4)
    cache.watcher = mirror = Mirror()
    for prompt in prompts:
        lease = cache.lease(prompt)
        cache.extend(lease)
        cache.release(lease)
        held = {block: len(copies) for block, copies in cache._by_hash.items()}
        assert +mirror.copies == Counter(held)
    cache.clear()
    assert not +mirror.copies


def subscribe(client, **request):
    return client.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(**request))


async def batches(call, count):
    """So many batches that are no records of the load."""
    found = []
    async with asyncio.timeout(10):
        while len(found) < count:
            batch = await call.read()
            assert batch is not grpc.aio.EOF
            if not batch.load.load_only:
                found.append(batch)
    return found


async def subscribed(client, **request):
    call = subscribe(client, **request)
    await call.initial_metadata()
    return call


async def test_a_prompt_is_stored_as_one_chain_with_its_tokens(start):
    client = await start(block_tokens=BLOCK)
    call = await subscribed(client)
    prompt = list(range(100, 140))
    await client.generate(prompt, max_tokens=1)
    (batch,) = await batches(call, 1)
    assert (batch.sequence_number, batch.dp_rank) == (0, 0)
    (event,) = batch.events
    assert not event.stored.HasField("parent_block_hash")
    assert [list(block.token_ids) for block in event.stored.blocks] == [prompt[:16], prompt[16:32]]
    assert {block.block_size for block in event.stored.blocks} == {BLOCK}
    assert event.stored.kv_cache_spec_kind == "full_attention"


async def test_what_is_used_again_is_not_reported_again(start):
    client = await start(block_tokens=BLOCK)
    call = await subscribed(client)
    prompt = list(range(100, 140))
    await client.generate(prompt, max_tokens=1)
    await client.generate([*prompt, *range(200, 220)], max_tokens=1)
    first, second = await batches(call, 2)
    (event,) = second.events
    assert event.stored.parent_block_hash == first.events[0].stored.blocks[-1].block_hash
    assert [list(block.token_ids) for block in event.stored.blocks] == [[*prompt[32:], *range(200, 208)]]


async def test_a_late_subscriber_gets_no_history_and_no_place_to_resume_from(start):
    client = await start(block_tokens=BLOCK)
    await client.generate(list(range(100, 140)), max_tokens=1)
    late = await subscribed(client)
    await client.generate(list(range(300, 340)), max_tokens=1)
    (batch,) = await batches(late, 1)
    assert batch.sequence_number == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await subscribe(client, start_sequence_number=1).read()
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_records_of_the_load_repeat_the_last_number(start):
    client = await start(block_tokens=BLOCK)
    call = await subscribed(client)
    await client.generate(list(range(100, 140)), max_tokens=1)
    await batches(call, 1)
    async with asyncio.timeout(10):
        record = await call.read()
    assert record.load.load_only
    assert record.sequence_number == 0
    assert not record.events


async def test_a_flushed_cache_is_cleared(start):
    client = await start(block_tokens=BLOCK)
    call = await subscribed(client)
    await client.generate(list(range(100, 140)), max_tokens=1)
    await client.stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=5))
    _, flushed = await batches(call, 2)
    assert [event.WhichOneof("data") for event in flushed.events] == ["cleared"]


async def test_a_lost_batch_leaves_a_gap(start):
    client = await start(block_tokens=BLOCK, faults=Faults(kv_lose_every=2))
    call = await subscribed(client)
    for number in range(3):
        await client.generate(list(range(100 * number, 100 * number + 40)), max_tokens=1)
    assert [batch.sequence_number for batch in await batches(call, 2)] == [0, 2]


async def test_copies_are_reported_one_by_one(start):
    client = await start(block_tokens=BLOCK, kv_cache_tokens=2 * BLOCK, faults=Faults(kv_copies=2))
    call = await subscribed(client)
    await client.generate(list(range(100, 120)), max_tokens=1)
    await client.generate(list(range(200, 240)), max_tokens=1)
    first, second = await batches(call, 2)
    assert [event.WhichOneof("data") for event in first.events] == ["stored", "stored"]
    assert [event.WhichOneof("data") for event in second.events].count("removed") == 2


async def test_data_loss_ends_the_stream(start):
    client = await start(block_tokens=BLOCK, faults=Faults(kv_data_loss_after=1))
    call = await subscribed(client)
    await client.generate(list(range(100, 140)), max_tokens=1)
    await batches(call, 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(10):
            await call.read()
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS


async def test_zmq_carries_the_same_and_sends_it_again(start):
    client = await start(
        block_tokens=BLOCK, kv_zmq="tcp://127.0.0.1:*", kv_zmq_replay="tcp://127.0.0.1:*", kv_zmq_topic="kv"
    )
    publisher = client.engine.engine.kv_publisher
    with zmq.asyncio.Context() as context:
        live, again = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        live.subscribe(b"kv")
        live.connect(publisher.endpoint)
        again.connect(publisher.replay_endpoint)
        try:
            async with asyncio.timeout(10):
                prompt = list(range(100, 140))
                number = 0
                while not await live.poll(20):  # until the subscription is there
                    await client.generate([number, *prompt], max_tokens=1)
                    number += 1
                topic, sequence, payload = await live.recv_multipart()
                await again.send_multipart([b"", (0).to_bytes(8, "big")])
                _, _, first, _ = await again.recv_multipart()
        finally:
            context.destroy(linger=0)
    assert topic == b"kv"
    assert int.from_bytes(sequence, "big") < number
    assert int.from_bytes(first, "big") == 0
    _, (event,), rank = msgspec.msgpack.decode(payload)
    assert rank == 0
    assert event["type"] == "BlockStored"
    assert event["token_ids"][1:32] == prompt[:31]
