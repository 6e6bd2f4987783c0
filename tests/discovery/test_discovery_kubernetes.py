"""Pods with a label are workers, over the API's own list and watch protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes_api import KubernetesApi, pod
from test_discovery_sources import Heard, listening

from extproc.config.fleet import KubernetesWorkers
from extproc.discovery.kubernetes_source import KubernetesSource
from extproc.discovery.roster import Found


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    server = KubernetesApi()
    await server.start()
    yield server
    await server.stop()


def source(api: KubernetesApi, folder: Path) -> KubernetesSource:
    section = KubernetesWorkers(selector="app=vllm", port=50051, kubeconfig=api.kubeconfig(folder))
    return KubernetesSource(section, first_delay_s=0.05)


async def until(heard: Heard, names: list[str]) -> list[Found]:
    """The next list with these names."""
    while True:
        found = await heard.next()
        if [each.name for each in found] == names:
            return found


async def test_pods_that_run_are_listed_and_changes_are_watched(api: KubernetesApi, tmp_path: Path) -> None:
    api.put(pod("a", "10.0.0.1"))
    api.put(pod("pending", None, phase="Pending"))
    api.put(pod("v6", "fd00::1", **{"llm-extproc/port": "7000", "llm-extproc/ranks": "8"}))
    async with listening(source(api, tmp_path)) as heard:
        assert await heard.next() == [Found("10.0.0.1:50051", "a"), Found("[fd00::1]:7000", "v6", 8)]
        api.put(pod("pending", "10.0.0.2"))
        await until(heard, ["a", "pending", "v6"])
        api.bookmark()
        api.put(pod("a", "10.0.0.1", deleted=True))
        await until(heard, ["pending", "v6"])
        api.delete("a")
        api.delete("v6")
        await until(heard, ["pending"])
        assert heard.problems.empty()
    path, query = api.requests[0]
    assert (path, query["labelSelector"]) == ("/api/v1/namespaces/llm/pods", "app=vllm")
    assert api.requests[1][1]["watch"] == "True"
    assert "timeoutSeconds" in api.requests[1][1]


async def test_a_watch_that_ends_or_whose_version_is_forgotten_is_begun_anew(
    api: KubernetesApi, tmp_path: Path
) -> None:
    api.put(pod("a", "10.0.0.1"))
    async with listening(source(api, tmp_path)) as heard:
        await until(heard, ["a"])
        await api.watching.wait()
        api.end_watches()
        api.expired = True
        api.put(pod("b", "10.0.0.2"))
        await until(heard, ["a", "b"])
        await until(heard, ["a", "b"])
        api.put(pod("c", "10.0.0.3"))
        await until(heard, ["a", "b", "c"])
        assert heard.problems.empty()


async def test_a_broken_watch_is_told_and_nothing_is_lost(api: KubernetesApi, tmp_path: Path) -> None:
    api.put(pod("a", "10.0.0.1"))
    async with listening(source(api, tmp_path)) as heard:
        await until(heard, ["a"])
        await api.watching.wait()
        api.break_watches()
        assert "cannot be reached" in await asyncio.wait_for(heard.problems.get(), 5)
        api.put(pod("b", "10.0.0.2"))
        await until(heard, ["a", "b"])


async def test_an_account_that_may_not_list_is_named_and_tried_again(api: KubernetesApi, tmp_path: Path) -> None:
    api.status = 403
    api.put(pod("a", "10.0.0.1"))
    async with listening(source(api, tmp_path)) as heard:
        problem = await asyncio.wait_for(heard.problems.get(), 5)
        assert problem == "Kubernetes answers 403 Forbidden; may its account list and watch pods?"
        api.status = 200
        await until(heard, ["a"])


async def test_a_configuration_that_leads_nowhere_is_a_problem_and_no_end(tmp_path: Path) -> None:
    section = KubernetesWorkers(selector="app=vllm", kubeconfig=tmp_path / "missing")
    async with listening(KubernetesSource(section, first_delay_s=0.05)) as heard:
        assert "no way to the Kubernetes API" in await asyncio.wait_for(heard.problems.get(), 5)
