"""The index knows what a real engine's KV cache holds, by nothing but the engine's events."""

from __future__ import annotations

import contextlib
import random

import pytest
from e2e.stack import eventually
from real_engine import RealEngine
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from extproc.config.fleet import KvEvents
from extproc.engines.control import open_channel
from extproc.gateway.kv_feeds import KvFeeds
from extproc.routing.facts import RouteFacts
from extproc.routing.index import PrefixIndex
from extproc.routing.membership import Membership, WorkerSpec
from extproc.routing.policies.base import PrefixUse
from extproc.routing.prefixes import Prefixes
from extproc.token_ids import TokenIds

pytestmark = pytest.mark.engines

PROMPTS = 14
PROMPT_TOKENS = 1500  # all of them are more than the cache holds
SHARED_TOKENS = 300


async def test_the_index_holds_what_the_cache_holds(engine: RealEngine) -> None:
    block = engine.kind.block_tokens
    if not block or engine.kind.talks_sense:
        pytest.skip("keeps no prompts, or takes minutes for these")
    chance = random.Random(1)
    shared = [chance.randrange(1000, 20_000) for _ in range(SHARED_TOKENS)]
    prompts = [
        [*shared, *(chance.randrange(1000, 20_000) for _ in range(PROMPT_TOKENS - SHARED_TOKENS))]
        for _ in range(PROMPTS)
    ]
    members = Membership()
    prefixes = Prefixes(PrefixIndex(), block, PrefixUse(), 1_000_000)
    feeds = KvFeeds(KvEvents(), prefixes)
    members.observe(prefixes)
    members.observe(feeds)
    members.update([WorkerSpec(engine.address, "real")])
    (worker,) = members.workers

    def known(prompt: list[int]) -> int:
        facts = RouteFacts(len(prompt), TokenIds.of(prompt))
        prefixes.look_up(facts, members.workers)
        return facts.precise.get(worker, 0)

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(feeds.stop)
        stub = vllm_engine_pb2_grpc.VllmEngineStub(await stack.enter_async_context(open_channel(engine.address)))

        async def cached(prompt: list[int]) -> int:
            """Ask, and wait until the events of it have come."""
            request = pb.GenerateRequest(
                request_id=str(chance.random()),
                tokenized=pb.TokenizedInput(input_ids=prompt),
                sampling_params=pb.SamplingParams(max_tokens=1),
            )
            answers = [answer async for answer in stub.Generate(request, timeout=120)]
            whole = (len(prompt) - 1) // block * block
            await eventually(lambda: known(prompt) == whole, f"events of a prompt of {len(prompt)} tokens")
            return answers[-1].complete.cached_tokens

        await eventually(lambda: feeds.live == 1, "a subscription")
        # Prompts of earlier tests are in the cache; the first of these may have parents that nobody knows.
        for prompt in prompts:
            await cached(prompt)
        agreed = []
        for prompt in [*prompts, *prompts[:2]]:
            expected = known(prompt)
            agreed.append((expected, await cached(prompt)))
        assert all(expected == said for expected, said in agreed), agreed
        assert any(0 < said < PROMPT_TOKENS - block for _, said in agreed)  # evicted in part
        figures = feeds.figures
        assert figures.removed > 0
        assert figures.losses.total() == 0
        assert not set(figures.dropped) - {"unknown_parent", "unknown_block"}
