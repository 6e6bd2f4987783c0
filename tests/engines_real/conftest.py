"""One real engine at a time for all tests, and a gateway in front of it for each."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e.stack import Stack, StartStack, running_stack
from install import VLLM
from real_engine import ENVIRONMENT, MLX_SMALL, MLX_TINY, VLLM_SMALL, VLLM_TINY, EngineKind, RealEngine, running_engine

from extproc.envoyconfig.binary import find_envoy

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Random weights make no sense, and slow engines need not do more than that."""

    def wanted(item: pytest.Item) -> bool:
        if "engine" not in item.fixturenames:  # type: ignore[attr-defined]
            return True
        kind: EngineKind = item.callspec.params["engine"]  # type: ignore[attr-defined]
        return kind.talks_sense if item.path.name == "test_real_sense.py" else not kind.is_slow

    items[:] = [item for item in items if wanted(item)]


@pytest.fixture(scope="session", params=[VLLM_SMALL, VLLM_TINY, MLX_TINY, MLX_SMALL], ids=lambda kind: kind.name)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    """Each kind in turn; all tests run with one before the next is started."""
    folder = tmp_path_factory.mktemp(request.param.name)
    with running_engine(request.param, folder / "engine.log") as running:
        yield running


@pytest.fixture
def start_gateway(engine: RealEngine, tmp_path: Path) -> StartStack:
    """Starts Envoy and a processor for the engine. `pool` and `settings` change parts of the configuration."""

    def start(
        pool: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> contextlib.AbstractAsyncContextManager[Stack]:
        kind = engine.kind
        return running_stack(
            find_envoy().path,
            tmp_path,
            specs=[],
            pool={"engine": kind.protocol, "models": [kind.model], "workers": [engine.address], **(pool or {})},
            settings={"health": {"interval_s": 1.0, "timeout_s": 10.0}, **(settings or {})},
        )

    return start


CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  spaces \n\n and\ttabs  "}],
    [
        {"role": "user", "content": "Grüße 👩‍👩‍👧‍👦, 你好，世界! “quotes” 1234567"},
        {"role": "assistant", "content": "<b>&amp;</b>"},
        {"role": "user", "content": "special <|im_end|> tokens <|im_start|>in the text"},
    ],
    [{"role": "user", "content": "A longer text, over and over. " * 50}],
]


@pytest.fixture(scope="session")
def reference_ids(engine: RealEngine) -> list[list[int]]:
    """The ids of CONVERSATIONS by transformers itself, which lives in vLLM's environment."""
    done = subprocess.run(
        [str(VLLM / "bin/python"), str(HERE / "reference_ids.py"), str(engine.kind.folder)],
        input=json.dumps(CONVERSATIONS),
        env={"PATH": "/usr/bin:/bin", **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    ids: list[list[int]] = json.loads(done.stdout)
    return ids
