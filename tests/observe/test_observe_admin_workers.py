"""Operators list, add, drain and remove workers; nobody else does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from extproc.config.schema import Config
from extproc.discovery.admin import WorkersAdmin
from extproc.discovery.build import build_discovery
from extproc.discovery.discovery import Discovery
from extproc.discovery.roster import Roster
from extproc.observe.admin import AdminServer, Readiness
from extproc.observe.exposition import Family, Sample
from extproc.observe.workers import WorkerFigures, worker_figures

A, B, V6 = "10.0.0.1:50051", "10.0.0.2:50051", "[fd00::1]:50051"
TOKEN = "a-long-enough-token"


class Gateway:
    """As an admin address sees it."""

    def __init__(self) -> None:
        self.discovery: Discovery | None = None
        self.rosters: list[Roster] = []

    async def metrics(self) -> bytes:
        return b""

    async def readiness(self) -> Readiness:
        return Readiness(True, {})

    async def worker_figures(self) -> Mapping[tuple[str, str], WorkerFigures]:
        def family(name: str, value: float) -> Family:
            return Family(name, "gauge", "", [Sample(name, (("pool", "main"), ("worker", A)), value)])

        return worker_figures(
            [
                family("extproc_worker_ready", 1.0),
                family("extproc_worker_running_requests", 3.0),
                family("extproc_worker_waiting_tokens", 40.0),
                Family("extproc_cancelled_total", "counter", "", []),
            ]
        )

    async def running(self) -> Mapping[tuple[str, str], int]:
        return {}


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *, token: str | None = None, open_to_all: bool = True
) -> AsyncIterator[tuple[httpx2.AsyncClient, Gateway]]:
    config = Config.model_validate(
        {
            "pools": [{"name": "main", "models": ["m"], "workers": [A]}],
            "envoy": {"directory": str(folder / "xds")},
        }
    )
    gateway = Gateway()
    gateway.discovery = build_discovery(config, gateway.rosters.append, gateway.running)
    await gateway.discovery.start()
    token_file = None
    if token is not None:
        token_file = folder / "token"
        token_file.write_text(token + "\n")
    server = AdminServer(gateway, {"workers": WorkersAdmin(gateway, token_file, open_to_all=open_to_all).answer})
    await server.start("127.0.0.1", 0)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            yield http, gateway
    finally:
        await server.stop()
        await gateway.discovery.stop()


def states(listed: Any) -> dict[str, str]:
    return {worker["address"]: worker["state"] for worker in listed["workers"]}


async def until(http: httpx2.AsyncClient, wanted: dict[str, str]) -> None:
    for _ in range(1000):
        now = states((await http.get("/workers")).json())
        if now == wanted:
            return
    raise AssertionError(f"the workers are {now}")


async def test_a_worker_is_added_drained_and_removed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (http, _):
        assert (await http.get("/workers")).json()["workers"] == [
            {
                "pool": "main",
                "address": A,
                "name": A,
                "source": "configuration",
                "state": "ready",
                "running_requests": 3,
                "waiting_tokens": 40,
            }
        ]
        for address in (f"grpc://{B}", V6):
            added = await http.post("/workers", json={"pool": "main", "address": address})
            assert added.status_code == 202
        assert (await http.post("/workers", json={"pool": "main", "address": B})).status_code == 200
        await until(http, {A: "ready", B: "not_ready", V6: "not_ready"})
        endpoints = (tmp_path / "xds" / "eds" / "main.yaml").read_text()
        assert "10.0.0.2" in endpoints
        assert "fd00::1" in endpoints
        assert (await http.post(f"/workers/main/{A}/drain")).status_code == 202
        await until(http, {A: "draining", B: "not_ready", V6: "not_ready"})
        assert (await http.post(f"/workers/main/{A}/undrain")).status_code == 202
        assert (await http.delete(f"/workers/main/{B}")).status_code == 202
        assert (await http.delete("/workers/main/%5Bfd00::1%5D:50051")).status_code == 202
        await until(http, {A: "ready", B: "draining", V6: "draining"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/workers", "{", 400, "JSON"),
        ("POST", "/workers", {"pool": "main"}, 400, "address"),
        ("POST", "/workers", {"pool": "main", "address": "engine:1"}, 400, "host name"),
        ("POST", "/workers", {"pool": "main", "address": "nowhere"}, 400, "port"),
        ("POST", "/workers", {"pool": "main", "address": B, "ranks": 0}, 400, "ranks"),
        ("POST", "/workers", {"pool": "main", "address": B, "rank": 1}, 400, "rank"),
        ("POST", "/workers", {"pool": "no", "address": B}, 404, "there are main"),
        ("POST", "/workers", {"pool": "main", "address": A}, 409, "from configuration"),
        ("DELETE", f"/workers/main/{A}", "", 409, "take it out there"),
        ("DELETE", f"/workers/main/{B}", "", 404, "no worker"),
        ("PUT", "/workers", "", 405, "GET, POST"),
        ("GET", f"/workers/main/{A}", "", 405, "DELETE"),
        ("POST", f"/workers/main/{A}/restart", "", 404, "/drain"),
        ("POST", "/workers", "x" * 70_000, 413, "bytes"),
    ],
)
async def test_what_cannot_be_is_refused_with_the_reason(
    tmp_path: Path, method: str, path: str, body: Any, status: int, words: str
) -> None:
    async with serving(tmp_path) as (http, gateway):
        before = len(gateway.rosters)
        content = body if isinstance(body, str) else json.dumps(body)
        answer = await http.request(method, path, content=content)
        assert answer.status_code == status
        assert words in answer.json()["error"]
        assert len(gateway.rosters) == before


async def test_with_a_token_only_those_who_have_it_get_in(tmp_path: Path) -> None:
    async with serving(tmp_path, token=TOKEN, open_to_all=False) as (http, _):
        for header in ({}, {"authorization": "Bearer wrong-but-also-long"}, {"authorization": f"Basic {TOKEN}"}):
            answer = await http.get("/workers", headers=header)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        right = {"authorization": f"Bearer {TOKEN}"}
        assert (await http.get("/workers", headers=right)).status_code == 200
        (tmp_path / "token").write_text("another-long-token\n")
        assert (await http.get("/workers", headers=right)).status_code == 401


async def test_a_short_or_missing_token_opens_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, token="short") as (http, _):
        answer = await http.get("/workers", headers={"authorization": "Bearer short"})
        assert (answer.status_code, "16 characters" in answer.text) == (500, True)
        (tmp_path / "token").unlink()
        assert (await http.get("/workers")).status_code == 500


async def test_without_a_token_an_address_that_others_reach_serves_nobody_and_browsers_never(tmp_path: Path) -> None:
    async with serving(tmp_path, open_to_all=False) as (http, _):
        assert (await http.get("/workers")).status_code == 403
        assert (await http.get("/readyz")).status_code == 200
    async with serving(tmp_path) as (http, gateway):
        page = {"origin": "http://evil.example"}
        body = {"pool": "main", "address": B}
        assert (await http.post("/workers", json=body, headers=page)).status_code == 403
        assert len(gateway.rosters) == 1
