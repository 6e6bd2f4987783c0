"""The API tests that SDKs bring in their sources, run against a real Envoy: `make test-sdks`.

They were made for a server that answers every documented request with an example. Where this gateway cannot agree,
sdks/own_tests.json says which tests fail, and why; all others must pass, and those must fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from model_engines import TOOLS_TEMPLATE
from sdks import environments
from stack import INSTANT, running_stack

from extproc.simulator.spec import Answers, EngineSpec

pytestmark = [pytest.mark.envoy, pytest.mark.sdks]

PLAN: dict[str, Any] = json.loads((environments.HERE / "own_tests.json").read_text())
RUN_S = 300.0


async def outcomes(package: str, base_url: str, results: Path) -> dict[tuple[str, str], bool]:
    """Of each test, by its file and name, whether it passed with every client that it was run with."""
    folder = await asyncio.to_thread(environments.own_tests)
    files = [f"tests/api_resources/{file}" for file in PLAN[package]["files"]]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", f"--rootdir={folder / package}", f"--junit-xml={results}"]
    process = await asyncio.create_subprocess_exec(
        *(str(folder / "bin" / "python"), "-m", "pytest", *options, *files),
        cwd=folder / package,
        env={**os.environ, "TEST_API_BASE_URL": base_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), RUN_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode in (0, 1), out.decode()[-5000:]
    passed: dict[tuple[str, str], bool] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        module = case.attrib["classname"].removeprefix("tests.api_resources.").rpartition(".")[0]
        test = (module.replace(".", "/") + ".py", case.attrib["name"].partition("[")[0])
        good = case.find("failure") is None and case.find("error") is None
        passed[test] = passed.get(test, True) and good
    return passed


@pytest.mark.parametrize("package", PLAN)
async def test_an_sdk_passes_its_own_tests_but_for_those_that_are_explained(
    envoy_binaries: Mapping[str, Path], tmp_path: Path, package: str
) -> None:
    plan = PLAN[package]
    specs = [
        EngineSpec(**INSTANT, answers=Answers.SCRIPT, texts=("So.</think>Hello.",)),
        EngineSpec(**INSTANT, embedding_dimensions=8),
    ]

    def pools(addresses: list[str]) -> list[dict[str, Any]]:
        chat, embedding = addresses
        return [
            {"name": "chat", "models": plan["models"], "workers": [chat], "chat_template": str(TOOLS_TEMPLATE)},
            {"name": "embedding", "models": plan["embedding_models"] or ["embedding"], "workers": [embedding]},
        ]

    async with running_stack(envoy_binaries["1.40"], tmp_path, specs=specs, pools=pools) as stack:
        base_url = f"http://127.0.0.1:{stack.http_port}" + ("/v1" if package == "openai" else "")
        passed = await outcomes(package, base_url, tmp_path / "results.xml")
    explained = set()
    for difference in plan["differences"]:
        pattern = re.compile(f"test_(method|raw_response|streaming_response)_({difference['tests']})(_.*)?")
        matching = {test for test in passed if test[0] == difference["file"] and pattern.fullmatch(test[1])}
        assert matching, f"nothing is explained: {difference}"
        explained |= matching
    assert {test for test, good in passed.items() if not good} == explained
    assert any(passed.values())
