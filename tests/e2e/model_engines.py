"""A stack in which the model's name says what comes back: one pool and one engine for each answer and each fault."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from stack import INSTANT, Stack, running_stack

from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import Answers, EngineSpec

TOOLS_TEMPLATE = Path(__file__).parent / "data" / "tools.jinja"
THOUGHT = "The user asks for\nthe weather."
CALLS = (
    f"{THOUGHT}\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>'
)
SAYS: Mapping[str, tuple[str, bool]] = {
    "plain": ("Hello, wörld! 🚀", False),
    "json": ('{"degrees": 21}', False),
    "calls": (CALLS, True),
    "says": ("So.</think>It is sunny.", True),
    "sunny": ("Sunny.", True),
    "must": ('[{"name": "weather", "parameters": {"city": "Bern"}}]', True),
    "must-now": ('[{"name": "now", "parameters": {}}]', True),
    "named": ('{"city": "Bern"}', True),
}
"""By model: its answer, and whether its chat template knows of tools and reasoning."""
EMBEDS = "vectors"
"""The model that makes embeddings."""
FAULTS: Mapping[str, Faults] = {
    "full": Faults(refuse_status=8, details="full"),
    "breaks": Faults(break_kind=Break.ERROR, break_after=3),
}
"""By model: what its engine does wrong."""


@contextlib.asynccontextmanager
async def model_engines(binary: Path, folder: Path) -> AsyncIterator[Stack]:
    """The stack, with nothing left in it at the end."""
    specs = [
        EngineSpec(**INSTANT, model=model, answers=Answers.SCRIPT, texts=(text,)) for model, (text, _) in SAYS.items()
    ]
    specs += [
        EngineSpec(prefill_tokens_per_s=0.0, decode_step_s=0.01, model=model, answers=Answers.NATURAL, faults=faults)
        for model, faults in FAULTS.items()
    ]
    specs.append(EngineSpec(**INSTANT, model=EMBEDS, embedding_dimensions=8))

    def pools(addresses: list[str]) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for spec, address in zip(specs, addresses, strict=True):
            pool: dict[str, Any] = {"name": spec.model, "models": [spec.model], "workers": [address]}
            _, tools = SAYS.get(spec.model, ("", False))
            made.append({**pool, "chat_template": str(TOOLS_TEMPLATE)} if tools else pool)
        return made

    async with running_stack(binary, folder, specs=specs, pools=pools) as stack:
        yield stack
        await stack.nothing_left()
