"""Official SDKs of several majors, in Python and JavaScript, through a real Envoy: `make test-sdks`.

Each runs as a process of its own in an environment of its own (sdks/environments.py). What a model says is chosen by
its name: each has one engine with one answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from sdks import environments
from stack import INSTANT, Stack, StartStack

from extproc.simulator.faults import Break, Faults
from extproc.simulator.spec import Answers, EngineSpec

pytestmark = [pytest.mark.envoy, pytest.mark.sdks]

SCRIPT_S = 120.0
CLIENTS = Path(environments.__file__).parent / "clients"
TOOLS = Path(__file__).parent / "data" / "tools.jinja"
CALLS = (
    "The user asks for\nthe weather.\n</think>\n\nLet me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>'
)
SAYS: dict[str, tuple[str, bool]] = {
    "plain": ("Hello, wörld! 🚀", False),
    "json": ('{"degrees": 21}', False),
    "calls": (CALLS, True),
    "says": ("So.</think>It is sunny.", True),
    "must": ('[{"name": "weather", "parameters": {"city": "Bern"}}]', True),
    "named": ('{"city": "Bern"}', True),
}
"""By model: its answer, and whether its chat template knows of tools and reasoning."""
FAULTS = {"full": Faults(refuse_status=8, details="full"), "breaks": Faults(break_kind=Break.ERROR, break_after=3)}
"""By model: what its engine does wrong."""


@pytest.fixture
def envoy_binary(envoy_binaries: dict[str, Path]) -> Path:
    """The newest alone: what an SDK reads does not depend on it."""
    return envoy_binaries["1.40"]


@contextlib.asynccontextmanager
async def gateway(start_stack: StartStack) -> AsyncIterator[Stack]:
    """One pool for each model."""
    specs, pools = [], []
    for model, (text, tools) in SAYS.items():
        spec = EngineSpec(
            **INSTANT, listen=f"127.0.0.1:{free_port()}", model=model, answers=Answers.SCRIPT, texts=(text,)
        )
        specs.append(spec)
        pools.append(_pool(spec, **({"chat_template": str(TOOLS)} if tools else {})))
    for model, faults in FAULTS.items():
        spec = EngineSpec(
            prefill_tokens_per_s=0.0,
            decode_step_s=0.01,
            listen=f"127.0.0.1:{free_port()}",
            model=model,
            answers=Answers.NATURAL,
            faults=faults,
        )
        specs.append(spec)
        pools.append(_pool(spec))
    async with start_stack(specs=specs, settings={"pools": pools}) as stack:
        yield stack
        await stack.nothing_left()


def _pool(spec: EngineSpec, **more: Any) -> dict[str, Any]:
    return {"name": spec.model, "models": [spec.model], "workers": [spec.listen], **more}


async def failures(*command: str, folder: Path) -> dict[str, str]:
    """The checks of a script that failed, and how."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), SCRIPT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    checks = [json.loads(line) for line in out.splitlines()]
    assert checks, err.decode()
    failed = {check["check"]: check["error"] for check in checks if "error" in check}
    assert process.returncode == bool(failed), err.decode()
    return failed


@pytest.mark.parametrize("environment", environments.PYTHON)
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
async def test_an_sdk_of_python_gets_what_it_expects(start_stack: StartStack, environment: str, sdk: str) -> None:
    python = await asyncio.to_thread(environments.python, environment)
    async with gateway(start_stack) as stack:
        base_url = f"http://127.0.0.1:{stack.http_port}"
        failed = await failures(str(python), f"check_{sdk}.py", base_url, folder=CLIENTS)
    assert not failed, "\n".join(failed.values())


@pytest.mark.parametrize(
    ("sdk", "package"), [("openai", "openai"), ("openai", "openai-6"), ("anthropic", "@anthropic-ai/sdk")]
)
async def test_an_sdk_of_javascript_gets_what_it_expects(start_stack: StartStack, sdk: str, package: str) -> None:
    folder = await asyncio.to_thread(environments.javascript)
    if folder is None:
        pytest.skip(str(environments.missing_node()))
    async with gateway(start_stack) as stack:
        base_url = f"http://127.0.0.1:{stack.http_port}"
        failed = await failures("node", f"check_{sdk}.mjs", base_url, package, folder=folder)
    assert not failed, "\n".join(failed.values())
