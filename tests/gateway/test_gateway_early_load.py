"""What a worker sent is loaded before there is traffic the next time, and used if it is still what the worker sends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from extproc.config.schema import Config
from extproc.engines.control import ModelInfo
from extproc.gateway.backend import Backend
from extproc.gateway.pools import build_fleet
from extproc.gateway.preparation import Preparation
from extproc.simulator.spec import OWN_MODEL
from extproc.tokens.model import ModelTokens


def _preparation(folder: Path, sent: Path | None = None, serves: bool = False) -> tuple[Preparation, Backend]:
    pool = {"name": "one", "models": ["one"], "workers": []}
    config = Config.model_validate({"pools": [pool], "envoy": {"directory": str(folder / "xds")}})
    backend = build_fleet(config).backends["one"]
    preparation = Preparation(config.pools[0], backend, folder, lambda ready: None, serves=lambda: serves)
    if sent is not None:

        async def from_worker() -> tuple[ModelInfo | None, Path]:
            return None, sent

        preparation._from_worker = from_worker  # type: ignore[method-assign,assignment]
    return preparation, backend


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bool]]:
    """The folders that are loaded, and whether beside traffic."""
    seen: list[tuple[Path, bool]] = []
    load = ModelTokens.load

    async def watched(path: Path, *arguments: Any, **options: Any) -> ModelTokens:
        seen.append((path, options["beside_traffic"]))
        return await load(path, *arguments, **options)

    monkeypatch.setattr(ModelTokens, "load", watched)
    return seen


def _sent(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(OWN_MODEL, folder / name))


async def _start(preparation: Preparation, backend: Backend) -> None:
    await preparation.load_early()
    await preparation.run()
    assert backend.tokens is not None
    await backend.tokens.aclose()


async def test_the_tokenizer_of_an_earlier_start_is_loaded_once_and_early(
    tmp_path: Path, loads: list[tuple[Path, bool]]
) -> None:
    sent = _sent(tmp_path, "a" * 64)
    await _start(*_preparation(tmp_path, sent, serves=True))
    assert loads == [(sent, True)]
    await _start(*_preparation(tmp_path, sent))
    assert loads == [(sent, True), (sent, False)]


async def test_a_worker_that_sends_another_one_is_believed(tmp_path: Path, loads: list[tuple[Path, bool]]) -> None:
    await _start(*_preparation(tmp_path, _sent(tmp_path, "a" * 64)))
    other = _sent(tmp_path, "b" * 64)
    await _start(*_preparation(tmp_path, other))
    assert [path.name[0] for path, _ in loads] == ["a", "a", "b"]


@pytest.mark.parametrize("name", ["", ".", "..", "../elsewhere", "absent", "a\0b"])
async def test_a_record_that_leads_nowhere_is_ignored(
    tmp_path: Path, name: str, loads: list[tuple[Path, bool]]
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "one.last").write_text(name)
    preparation, _ = _preparation(tmp_path / "cache")
    await preparation.load_early()
    assert loads == []
