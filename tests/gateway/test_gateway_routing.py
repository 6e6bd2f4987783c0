"""From the configuration to policies at work: keys from requests, tokens of answers, reports of engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import pytest
from exchange.exchange_fakes import request_body, request_headers, response_body, response_headers, response_trailers
from observe.gateway_in_process import CHAT, chat_body, chunk, complete, load_tokens

from extproc.config.policies import PolicyName
from extproc.config.schema import Config
from extproc.exchange.exchange import Exchange, HeldBodies
from extproc.gateway.gateway import Gateway
from extproc.gateway.policies import PolicyError, build_policy
from extproc.gateway.pools import build_fleet
from extproc.gateway.routing import Routing
from extproc.observe.metrics import Metrics
from extproc.routing.facts import RouteFacts
from extproc.routing.worker import WorkerState
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import EngineSpec
from extproc.tokens.model import ModelTokens


def config(**pool: Any) -> Config:
    settings = {
        "name": "main",
        "models": ["m"],
        "workers": ["10.0.0.1:1", "10.0.0.2:1"],
        "load_interval_s": 0.0,
        **pool,
    }
    return Config.model_validate({"pools": [settings]})


@pytest.mark.parametrize("name", get_args(PolicyName))
def test_every_policy_of_the_configuration_is_there(name: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key of at least sixteen bytes\n")
    section = config(policy=name, options={"session": {"key": str(key)}}).pools[0]
    policy = build_policy(section)
    workers = build_fleet(config()).workers
    ranking = policy.rank(workers, RouteFacts(10))
    assert policy.name == name
    assert sorted(ranking.workers, key=id) == sorted(workers, key=id)
    assert ranking.reason in policy.reasons
    assert policy.explain(ranking, RouteFacts(10))


@pytest.mark.parametrize("content", [None, "too short"])
def test_a_session_key_that_is_none_is_told(content: str | None, tmp_path: Path) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_text(content)
    with pytest.raises(PolicyError, match="key"):
        build_policy(config(policy="session", options={"session": {"key": str(key)}}).pools[0])


def test_sessions_without_a_key_are_a_mistake_in_the_file() -> None:
    with pytest.raises(ValueError, match="key file"):
        config(policy="session")


class Set:
    """A gateway whose pool is ready, with all that runs beside it."""

    def __init__(self, settings: Config, tokens: ModelTokens) -> None:
        fleet = build_fleet(settings)
        for worker in fleet.workers:
            worker.state = WorkerState.READY
        backend = fleet.backends["main"]
        backend.tokens = tokens
        self.pool = backend.pool
        self.workers = fleet.workers
        self.metrics = Metrics(["m"], fleet.backends)
        self.routing = Routing(fleet, settings, self.metrics)
        self.gateway = Gateway(
            table=fleet.table,
            backends=fleet.backends,
            metrics=self.metrics,
            body_limit_bytes=1 << 20,
            debug_clients=(),
        )

    def begin(self, *, stream: bool = True, text: str = "Hello!", **headers: str) -> Exchange:
        exchange = Exchange(self.gateway, HeldBodies(1 << 20))
        exchange.receive(request_headers(**{":path": CHAT, **headers}))
        exchange.receive(request_body(chat_body(stream=stream, text=text), end=True))
        return exchange


@pytest.fixture
async def tokens() -> AsyncIterator[ModelTokens]:
    loaded = await load_tokens()
    yield loaded
    await loaded.aclose()


def answer(exchange: Exchange, ids: list[int]) -> bytes:
    """All that the gateway says while the engine answers."""
    said = [exchange.receive(response_headers(content_type="application/grpc"))]
    said.append(exchange.receive(response_body(chunk(ids))))
    said.append(exchange.receive(response_body(complete(ids, len(ids)))))
    said.append(exchange.receive(response_trailers(grpc_status="0")))
    exchange.close()
    return repr(said).encode()


async def test_prompt_and_answer_are_known_for_the_next_turn(tokens: ModelTokens) -> None:
    made = Set(config(), tokens)
    text = "a long question " * 40
    exchange = made.begin(text=text)
    chosen = next(worker for worker in made.workers if worker.running)
    assert chosen.load.queued_tokens == chosen.waiting_tokens > 40
    generated = list(range(20, 120))
    answer(exchange, generated)
    worker = made.workers[1]  # whichever was chosen, this one served: so the fake Envoy says
    assert (worker.running, worker.load.queued_tokens, worker.load.decoding) == (0, 0, 0)
    prefixes = made.pool.prefixes
    assert prefixes is not None
    slot = prefixes.slot(worker)
    assert slot is not None
    blocks = slot.filled
    assert blocks >= (100 + 40) // prefixes.block_tokens
    again = made.begin(text=text)
    assert worker.running == 1
    assert worker.load.queued_tokens <= prefixes.block_tokens
    again.close()
    await made.routing.stop()


async def test_decisions_and_the_error_of_estimates_are_counted(tokens: ModelTokens) -> None:
    made = Set(config(workers=["10.0.0.2:1"]), tokens)
    answer(made.begin(), [20, 21])
    decisions = {
        rule: made.metrics.decisions.child("main", "ttft", rule).value for rule in ("uncached", "cached", "spread")
    }
    assert decisions == {"uncached": 1, "cached": 0, "spread": 0}
    errors = [sum(made.metrics.estimate_error.child("main", each).counts) for each in ("later", "earlier")]
    assert sum(errors) == 1
    await made.routing.stop()


async def test_a_key_in_a_header_reaches_the_policy(tokens: ModelTokens) -> None:
    made = Set(config(policy="consistent_hashing"), tokens)
    exchanges = [made.begin(**{"x-routing-key": "k"}) for _ in range(6)]
    assert sorted(worker.running for worker in made.workers) == [0, 6]
    for exchange in exchanges:
        exchange.close()
    await made.routing.stop()


async def test_a_session_token_comes_with_the_answer_and_leads_back(tokens: ModelTokens, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key of at least sixteen bytes")
    made = Set(config(policy="session", options={"session": {"key": str(key)}}), tokens)
    exchange = made.begin()
    worker = made.workers[1]  # so the fake Envoy says
    said = answer(exchange, [20, 21])
    assert b"x-session-token" in said
    policy = made.pool.policy
    ((_, token),) = policy.answer_headers(worker, RouteFacts(1))
    worker.waiting_tokens += 1_000_000
    again = made.begin(**{"x-session-token": token})
    assert worker.running == 1
    again.close()
    await made.routing.stop()


async def test_engines_say_what_strangers_sent_and_how_large_their_cache_is(tokens: ModelTokens) -> None:
    (engine,) = await start_engines([EngineSpec(kv_cache_tokens=320_000)])
    made = Set(config(workers=[engine.address], load_interval_s=0.05), tokens)
    (worker,) = made.workers
    try:
        async with asyncio.timeout(10):
            while worker.reported is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        prefixes = made.pool.prefixes
        assert prefixes is not None
        slot = prefixes.slot(worker)
        assert slot is not None
        assert slot.kv_blocks == 320_000 // prefixes.block_tokens
        assert (worker.reported.waiting_requests, worker.reported.running_requests) == (0, 0)
    finally:
        await made.routing.stop()
        await engine.stop()
