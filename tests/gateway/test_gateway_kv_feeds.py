"""KV events of simulated engines reach the index over real sockets, whatever happens to them on the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import pytest
from e2e.stack import eventually
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.config.fleet import KvEvents
from extproc.gateway.kv_feeds import KvFeeds
from extproc.routing.facts import RouteFacts
from extproc.routing.index import PrefixIndex
from extproc.routing.membership import Membership, WorkerSpec
from extproc.routing.policies.base import PrefixUse
from extproc.routing.prefixes import Prefixes
from extproc.simulator.faults import Faults
from extproc.simulator.fleet import RunningEngine, start_engines
from extproc.simulator.spec import EngineSpec
from extproc.token_ids import TokenIds

BLOCK = 16


@dataclass
class Site:
    """An engine, and a pool with it as its only worker."""

    engine: RunningEngine
    members: Membership
    prefixes: Prefixes
    feeds: KvFeeds
    channel: grpc.aio.Channel

    @property
    def worker(self):
        return self.members.workers[0]

    async def ask(self, prompt: list[int]) -> None:
        """Fill the cache, one token of answer."""
        stub = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)
        request = pb.GenerateRequest(
            tokenized=pb.TokenizedInput(input_ids=prompt), sampling_params=pb.SamplingParams(max_tokens=1)
        )
        async for _ in stub.Generate(request, wait_for_ready=True, timeout=10):
            pass

    def known(self, prompt: list[int]) -> int:
        """Tokens of the prompt that the worker holds by its events."""
        facts = RouteFacts(len(prompt), TokenIds.of(prompt))
        self.prefixes.look_up(facts, self.members.workers)
        return facts.precise.get(self.worker, 0)

    def true(self, prompt: list[int]) -> int:
        """The same by the engine's cache, in whole blocks of ours."""
        return self.engine.engine.cache.cached_tokens(prompt) // BLOCK * BLOCK

    async def agree(self, *prompts: list[int]) -> None:
        """Until the index says of the prompts what the cache says."""
        await eventually(
            lambda: [self.known(prompt) for prompt in prompts] == [self.true(prompt) for prompt in prompts],
            f"the index has {[self.known(p) for p in prompts]}, the cache {[self.true(p) for p in prompts]}",
        )

    async def live(self) -> None:
        await eventually(lambda: self.feeds.live == 1, "a subscription")

    @property
    def complete(self) -> bool:
        return self.worker in self.prefixes.with_events


@contextlib.asynccontextmanager
async def running(
    carrier: str, *, replay: bool = True, block_tokens: int = BLOCK, **options: Any
) -> AsyncIterator[Site]:
    if carrier == "zmq":
        options |= {"kv_zmq": "tcp://127.0.0.1:*", "kv_zmq_replay": "tcp://127.0.0.1:*" if replay else ""}
    spec = EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.0, block_tokens=block_tokens, **options)
    (engine,) = await start_engines([spec])
    members = Membership()
    prefixes = Prefixes(PrefixIndex(), BLOCK, PrefixUse(), 1_000_000)
    publisher = engine.engine.kv_publisher
    section = KvEvents()
    if publisher is not None:
        section = KvEvents(
            source="zmq",
            port=_port(publisher.endpoint),
            replay_port=_port(publisher.replay_endpoint) if replay else None,
        )
    feeds = KvFeeds(section, prefixes)
    members.observe(prefixes)
    members.observe(feeds)
    members.update([WorkerSpec(engine.address, "w")])
    try:
        async with grpc.aio.insecure_channel(engine.address) as channel:
            site = Site(engine, members, prefixes, feeds, channel)
            await site.live()
            yield site
    finally:
        await feeds.stop()
        await engine.stop()


def _port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def prompt(number: int, tokens: int = 100) -> list[int]:
    return [200 + number * 300 + at for at in range(tokens)]


BOTH = pytest.mark.parametrize("carrier", ["grpc", "zmq"])
ALL_BLOCKS = pytest.mark.parametrize("block_tokens", [16, 4, 1])


@BOTH
@ALL_BLOCKS
async def test_the_index_holds_what_the_cache_holds_also_after_evictions(carrier, block_tokens):
    async with running(carrier, block_tokens=block_tokens, kv_cache_tokens=20 * BLOCK) as site:
        prompts = [prompt(number) for number in range(6)]
        for each in prompts:
            await site.ask(each)
        await site.agree(*prompts)
        assert site.known(prompts[-1]) == 96
        assert site.known(prompts[0]) == 0
        assert site.complete
        assert site.feeds.figures.lag_s["w"] < 10


@BOTH
async def test_copies_are_counted(carrier):
    async with running(carrier, kv_cache_tokens=20 * BLOCK, faults=Faults(kv_copies=3)) as site:
        prompts = [prompt(number) for number in range(6)]
        for each in prompts:
            await site.ask(each)
            await site.ask(each[:96])  # its last block is computed again
        await site.agree(*prompts)


@BOTH
async def test_a_flushed_cache_is_empty(carrier):
    async with running(carrier) as site:
        await site.ask(prompt(1))
        await site.agree(prompt(1))
        stub = vllm_engine_pb2_grpc.VllmEngineStub(site.channel)
        await stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=5))
        await site.agree(prompt(1))
        assert site.known(prompt(1)) == 0


async def test_a_lost_batch_voids_what_was_known_and_the_stream_begins_anew():
    async with running("grpc", faults=Faults(kv_lose_every=3)) as site:
        await site.ask(prompt(1))
        await site.agree(prompt(1))
        site.prefixes.sent(site.worker, [1])
        for number in (2, 3, 4):  # the third batch is lost, which the fourth shows
            await site.ask(prompt(number))
        await eventually(lambda: site.feeds.figures.losses["gap"] == 1, "the gap is seen")
        assert site.known(prompt(1)) == 0
        assert not site.complete
        await site.live()
        site.engine.faults = Faults()
        await site.ask(prompt(5))
        await site.agree(prompt(5))


async def test_a_lost_batch_is_asked_for_again_where_there_is_a_replay():
    async with running("zmq", faults=Faults(kv_lose_every=3)) as site:
        prompts = [prompt(number) for number in range(7)]
        for each in prompts:
            await site.ask(each)
        await site.agree(*prompts[:6])
        assert site.feeds.figures.losses.total() == 0
        assert site.complete


async def test_a_lost_batch_without_a_replay_voids_what_was_known():
    async with running("zmq", replay=False, faults=Faults(kv_lose_every=3)) as site:
        prompts = [prompt(number) for number in range(4)]
        for each in prompts:
            await site.ask(each)
            await asyncio.sleep(0)
        await site.agree(prompts[3])
        assert site.feeds.figures.losses["gap"] == 1
        assert site.known(prompts[0]) == 0


async def test_data_loss_voids_what_was_known_and_the_stream_begins_anew():
    async with running("grpc", faults=Faults(kv_data_loss_after=2)) as site:
        await site.ask(prompt(1))
        await site.agree(prompt(1))
        await site.ask(prompt(2))
        await eventually(lambda: site.feeds.figures.losses["lost"] == 1, "the end of the stream")
        assert site.known(prompt(1)) == 0
        await site.live()
        await site.ask(prompt(3))
        await site.agree(prompt(3))
        assert not site.complete


@BOTH
async def test_an_engine_that_restarts_begins_with_an_empty_cache(carrier):
    async with running(carrier) as site:
        for number in range(3):
            await site.ask(prompt(number))
        await site.agree(prompt(1))
        await site.engine.restart(0.05)
        site.members.restarted(site.worker)  # as health checks find out
        assert site.known(prompt(1)) == 0
        await site.live()
        await site.ask(prompt(7))
        await site.agree(prompt(1), prompt(7))
        assert site.known(prompt(7)) == 96


async def test_a_publisher_that_restarts_is_noticed_by_its_replay_alone():
    async with running("zmq") as site:
        for number in range(3):
            await site.ask(prompt(number))
        await site.agree(prompt(1))
        await site.engine.restart(0.05)
        for number in range(3, 8):
            await site.ask(prompt(number))
        await site.agree(prompt(1), prompt(4), prompt(7))
        assert site.complete


async def test_a_late_subscriber_to_zmq_gets_all_that_is_kept():
    async with running("zmq") as site:
        await site.ask(prompt(1))
        site.members.update([])
        site.members.update([WorkerSpec(site.engine.address, "again")])
        await site.agree(prompt(1))
        assert site.known(prompt(1)) == 96
        assert site.complete


async def test_a_late_subscriber_to_grpc_knows_that_it_knows_little():
    async with running("grpc") as site:
        await site.ask(prompt(1))
        site.members.update([])
        site.members.update([WorkerSpec(site.engine.address, "again")])
        await site.live()
        await site.ask([*prompt(1), *prompt(2)])
        await eventually(lambda: site.feeds.figures.dropped["unknown_parent"] > 0, "an unknown parent")
        assert site.known(prompt(1)) == 0
        assert not site.complete


async def test_an_engine_without_events_is_asked_and_left_alone():
    async with contextlib.AsyncExitStack() as stack:
        (engine,) = await start_engines([EngineSpec(no_kv_events=True)])
        stack.push_async_callback(engine.stop)
        members = Membership()
        prefixes = Prefixes(PrefixIndex(), BLOCK, PrefixUse(), 1000)
        feeds = KvFeeds(KvEvents(), prefixes)
        stack.push_async_callback(feeds.stop)
        members.observe(prefixes)
        members.observe(feeds)
        members.update([WorkerSpec(engine.address, "w")])
        calls: Callable[[], int] = lambda: engine._server.open_calls  # noqa: E731
        await eventually(lambda: feeds.engines == 1 and not calls(), "the refusal")
        assert feeds.live == 0
        assert feeds.figures.losses.total() == 0


@BOTH
async def test_nothing_is_left_when_a_worker_goes(carrier):
    async with running(carrier) as site:
        await site.ask(prompt(1))
        await site.agree(prompt(1))
        site.members.update([])
        await eventually(
            lambda: not site.feeds.engines and not site.engine.engine.kv_events._streams, "the stream's end"
        )
        assert not site.feeds.figures.lag_s
        assert not site.prefixes.with_events


async def test_an_engine_that_is_not_there_yet_is_waited_for():
    async with running("grpc") as site:
        await site.engine.kill()
        await eventually(lambda: site.feeds.live == 0, "the end")
        (engine,) = await start_engines([replace(site.engine.engine.spec, listen=site.worker.address)])
        try:
            await site.live()
        finally:
            await engine.stop()
