"""Tokenizers on disk are there before anybody can ask; requests about tokens find their pool by its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc.config.schema import Config
from extproc.exchange.service import ExtProcService
from extproc.gateway.gateway import Gateway
from extproc.gateway.gauges import Gauges
from extproc.gateway.pools import build_fleet
from extproc.gateway.preparation import Preparation
from extproc.gateway.tokenization import detokenize, tokenize
from extproc.ir import RequestError
from extproc.observe.metrics import Metrics, RequestAccount
from extproc.observe.turns import LoopTurns
from extproc.simulator.spec import OWN_MODEL
from extproc.tokens.cache import TokenCache


def _config(folder: Path, *names: str) -> Config:
    pools = [{"name": name, "models": [name], "workers": [], "tokenizer": str(OWN_MODEL)} for name in names]
    envoy = {"directory": str(folder / "xds")}
    return Config.model_validate({"pools": pools, "envoy": envoy})


async def _gateway(config: Config, cache: TokenCache | None, folder: Path) -> Gateway:
    fleet = build_fleet(config)
    for section in config.pools:
        preparation = Preparation(section, fleet.backends[section.name], folder, lambda backend: None, cache)
        await preparation.load_early()
        await preparation.run()
    return Gateway(
        table=fleet.table,
        backends=fleet.backends,
        metrics=Metrics([card.id for card in fleet.table.cards], fleet.backends),
        body_limit_bytes=1 << 20,
        debug_clients=(),
    )


async def _ask(gateway: Gateway, operation: Any, **body: Any) -> Any:
    answer = await operation(gateway, RequestAccount(gateway.metrics), gateway.no_route, json.dumps(body).encode())
    return json.loads(answer.body)


async def _close(gateway: Gateway, *models: str) -> None:
    for model in models:
        await gateway.backend_for(model).ready_tokens().aclose()


async def test_with_one_pool_no_model_need_be_named(tmp_path: Path) -> None:
    gateway = await _gateway(_config(tmp_path, "one"), None, tmp_path)
    try:
        ids = (await _ask(gateway, tokenize, prompt="the quick"))["tokens"]
        assert ids == (await _ask(gateway, tokenize, prompt="the quick", model="one"))["tokens"]
        assert await _ask(gateway, detokenize, tokens=ids) == {"prompt": "the quick"}
        assert len((await _ask(gateway, detokenize, tokens=ids * 20_000))["prompt"]) == 20_000 * len("the quick")
    finally:
        await _close(gateway, "one")


async def test_with_several_pools_the_model_is_needed_and_the_cache_is_shared(tmp_path: Path) -> None:
    cache = TokenCache(1 << 20)
    gateway = await _gateway(_config(tmp_path, "one", "two"), cache, tmp_path)
    try:
        for operation, body in ((tokenize, {"prompt": "x"}), (detokenize, {"tokens": [1]})):
            with pytest.raises(RequestError, match="several models") as caught:
                await _ask(gateway, operation, **body)
            assert caught.value.info.param == "model"
        before = cache.hits
        for model in ("one", "two", "one", "two"):
            await _ask(gateway, tokenize, model=model, messages=[{"role": "user", "content": "the quick"}])
        assert cache.hits - before == 2
    finally:
        await _close(gateway, "one", "two")


async def test_an_early_load_that_fails_says_nothing_and_leaves_it_to_the_preparation(tmp_path: Path) -> None:
    pool = {"name": "one", "models": ["one"], "workers": [], "tokenizer": str(tmp_path / "absent")}
    config = Config.model_validate({"pools": [pool], "envoy": {"directory": str(tmp_path / "xds")}})
    backend = build_fleet(config).backends["one"]
    preparation = Preparation(config.pools[0], backend, tmp_path, lambda ready: None)
    await preparation.load_early()
    assert backend.tokens is None
    await preparation.aclose()


async def test_metrics_tell_what_the_token_cache_saves(tmp_path: Path) -> None:
    cache = TokenCache(1 << 20)
    config = _config(tmp_path, "one")
    gateway = await _gateway(config, cache, tmp_path)
    exchanges = ExtProcService(gateway, deadline_s=1.0, held_bodies_bytes=1)
    gauges = Gauges(build_fleet(config), exchanges, [], LoopTurns(), cache)

    def shown() -> dict[tuple[str, ...], float]:
        return {
            (sample.name.removeprefix("extproc_token_cache_"), *sample.labels.values()): sample.value
            for family in gauges.collect()
            for sample in family.samples
            if sample.name.startswith("extproc_token_cache_")
        }

    try:
        before = shown()
        talk = [{"role": "user", "content": "the quick brown fox"}]
        await _ask(gateway, tokenize, messages=talk)
        await _ask(gateway, tokenize, messages=talk)
        longer = [*talk, {"role": "assistant", "content": "jumps"}, {"role": "user", "content": "over"}]
        await _ask(gateway, tokenize, messages=longer)
        after = shown()
        grown = {name: value - before[name] for name, value in after.items() if value != before[name]}
        assert grown["lookups_total", "whole"] == grown["lookups_total", "beginning"] == 1
        assert grown["lookups_total", "nothing"] == 1
        assert grown["characters_total", "cache"] > len("the quick brown fox") * 2
        assert grown["characters_total", "tokenizer"] >= len("the quick brown foxjumpsover")
        assert after["bytes",] == cache.used_bytes > 0
        assert after["entries",] == len(cache) > 0
    finally:
        await _close(gateway, "one")
