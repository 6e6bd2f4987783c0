"""Official SDKs of several majors, in Python and JavaScript, through a real Envoy: `make test-sdks`.

Each runs as a process of its own in an environment of its own (sdks/environments.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from model_engines import model_engines
from sdks import environments

pytestmark = [pytest.mark.envoy, pytest.mark.sdks]

SCRIPT_S = 120.0
CLIENTS = Path(environments.__file__).parent / "clients"


@pytest.fixture
def envoy_binary(envoy_binaries: Mapping[str, Path]) -> Path:
    """The newest alone: what an SDK reads does not depend on it."""
    return envoy_binaries["1.40"]


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
@pytest.mark.parametrize("sdk", ["openai", "anthropic", "genai", "ollama"])
async def test_an_sdk_of_python_gets_what_it_expects(
    envoy_binary: Path, tmp_path: Path, environment: str, sdk: str
) -> None:
    python = await asyncio.to_thread(environments.python, environment)
    async with model_engines(envoy_binary, tmp_path) as stack:
        base_url = f"http://127.0.0.1:{stack.http_port}"
        failed = await failures(str(python), f"check_{sdk}.py", base_url, folder=CLIENTS)
    assert not failed, "\n".join(failed.values())


@pytest.mark.parametrize(
    ("sdk", "package"),
    [
        ("openai", "openai"),
        ("openai", "openai-6"),
        ("anthropic", "@anthropic-ai/sdk"),
        ("genai", "@google/genai"),
        ("genai", "google-genai-2"),
        ("ollama", "ollama"),
    ],
)
async def test_an_sdk_of_javascript_gets_what_it_expects(
    envoy_binary: Path, tmp_path: Path, sdk: str, package: str
) -> None:
    folder = await asyncio.to_thread(environments.javascript)
    if folder is None:
        pytest.skip(str(environments.missing_node()))
    async with model_engines(envoy_binary, tmp_path) as stack:
        base_url = f"http://127.0.0.1:{stack.http_port}"
        failed = await failures("node", f"check_{sdk}.mjs", base_url, package, folder=folder)
    assert not failed, "\n".join(failed.values())
