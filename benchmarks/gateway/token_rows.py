"""The rows of `make bench-tokens`: each kind of prompt, with both models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gateway.model import Model
from benchmarks.gateway.rows import FIVE, Prompt, Row, SetUpName

_BAR_ENVOY_SMG = 0.75
_BAR_SMG = 0.7
_KINDS: dict[str, dict[str, Any]] = {
    "new-300": {"words": 300, "requests": 8_000},
    "new-3000": {"words": 3_000, "requests": 2_500, "bar_smg": _BAR_SMG},
    "new-30000": {"words": 30_000, "requests": 400, "bar_smg": _BAR_SMG},
    # 64 conversations of 20 turns each.
    "conversation-20-turns": {
        "prompt": Prompt.CONVERSATION,
        "requests": 1_280,
        "all_requests": True,
        "bar_smg": _BAR_SMG,
    },
    "shared-system-16k": {"prompt": Prompt.SHARED_SYSTEM, "requests": 3_000, "bar_smg": _BAR_SMG},
    "same-6000": {"words": 6_000, "prompt": Prompt.SAME, "requests": 4_000, "bar_envoy_smg": 1.0},
}
_TWO = "two-processes"
_ONLY_LOOKED_UP = (Prompt.CONVERSATION, Prompt.SHARED_SYSTEM)
_BAR_SMG_DEEPSEEK = 1.0  # of prompts that are mostly looked up, where encoding them costs little


def _rows() -> Iterator[Row]:
    for model in (Model.DEEPSEEK, Model.SMOLLM2):
        for name, kind in _KINDS.items():
            settings = {"bar_envoy_smg": _BAR_ENVOY_SMG, **kind}
            if model is Model.DEEPSEEK and kind.get("prompt") in _ONLY_LOOKED_UP:
                settings["bar_smg"] = _BAR_SMG_DEEPSEEK
            yield Row(name=f"{name}-{model}", model=model, tokens=4, connections=64, set_ups=FIVE, **settings)
    for model in (Model.DEEPSEEK, Model.SMOLLM2):
        first = f"{_TWO}-any-{model}"
        for name, set_up in ((first, SetUpName.OURS_TWO), (f"{_TWO}-own-{model}", SetUpName.OURS_TWO_SESSIONS)):
            yield Row(
                name=name,
                model=model,
                tokens=4,
                connections=64,
                set_ups=(set_up,),
                beside=first,
                only_asked=True,
                **_KINDS["conversation-20-turns"] | {"bar_smg": None},
            )


ROWS = tuple(_rows())
"""The last ones, with two processes of ours, only tell what it saves that a conversation stays with one of them."""
