"""Checks of an engine outlive any of its ranks but the last; load that an engine no longer tells is unknown."""

from __future__ import annotations

import asyncio

from e2e.stack import eventually

from extproc.gateway.load_polls import LoadPolls
from extproc.gateway.worker_checks import GrpcChecks
from extproc.routing.health import Verdict
from extproc.routing.policies import LeastLoad
from extproc.routing.pool import Pool
from extproc.routing.worker import Worker
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import EngineSpec


async def test_a_rank_that_leaves_does_not_end_its_engines_check() -> None:
    (engine,) = await start_engines([EngineSpec()])
    checks = GrpcChecks("vllm", 5.0)
    ranks = [Worker(f"w{rank}", engine.address, rank) for rank in range(2)]
    for rank in ranks:
        checks.joined(rank)
    try:
        under_way = asyncio.ensure_future(checks.check(engine.address))
        await asyncio.sleep(0)
        checks.left(ranks[1])
        assert await under_way is Verdict.HEALTHY
    finally:
        await checks.aclose()
        await engine.stop()


async def test_the_load_of_an_engine_that_does_not_answer_any_more_is_unknown() -> None:
    (engine,) = await start_engines([EngineSpec()])
    worker = Worker("w", engine.address)
    polls = LoadPolls(Pool("main", [worker], LeastLoad(), 0), "vllm", 0.01)
    polls.joined(worker)
    try:
        await eventually(lambda: worker.reported is not None, "the engine's load")
        await engine.stop()
        await eventually(lambda: worker.reported is None, "what it said is void")
    finally:
        await polls.stop()
