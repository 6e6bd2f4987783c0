"""Engine protocols by the name that a configuration uses."""

from __future__ import annotations

from extproc.engines.base import Engine
from extproc.engines.mlx import MlxEngine
from extproc.engines.vllm import VllmEngine

ENGINES: dict[str, type[Engine]] = {VllmEngine.name: VllmEngine, MlxEngine.name: MlxEngine}


def engine(name: str) -> Engine:
    """Raises KeyError for a name that the configuration's schema would have refused."""
    return ENGINES[name]()
