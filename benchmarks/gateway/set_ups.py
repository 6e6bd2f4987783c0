"""Starts what is measured: simulated engines, this gateway, SMG, and a plain Envoy in front of SMG.

Everything is started when a row first needs it, and ends with this process. Gateways run with their defaults; their
logs go to files. Both kinds of Envoy have one worker thread and the same listener settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gateway import model
from benchmarks.gateway.model import Model
from benchmarks.gateway.requests import SESSION_HEADER
from benchmarks.gateway.rows import SetUpName
from extproc.cli.check import load_config
from extproc.cli.errors import CommandError
from extproc.cli.ports import free_ports
from extproc.cli.processes import Child, Processes
from extproc.cli.stack import processor_serves, require_envoy, start_envoy
from extproc.config.address import HostPort
from extproc.envoyconfig.files import BOOTSTRAP, build, write

HOST = "127.0.0.1"
_SERVE = (sys.executable, "-m", "extproc.cli.main", "serve")
_ENGINES = 2
_START_S = 120.0
_SMG_OF = {SetUpName.ENVOY_SMG: SetUpName.SMG, SetUpName.ENVOY_SMG_L0: SetUpName.SMG_L0}
_L0 = "--tokenizer-cache-enable-l0"
_CACHES = {
    SetUpName.SMG_L0: (_L0,),
    SetUpName.SMG_CACHES: (_L0, "--tokenizer-cache-enable-l1"),
    SetUpName.ENVOY_SMG_CACHES: (_L0, "--tokenizer-cache-enable-l1"),
}


@dataclass(frozen=True, slots=True)
class _Ours:
    transport: str = "ngh2"
    processes: int = 1
    session_headers: tuple[str, ...] = ()


_OURS = {
    SetUpName.OURS: _Ours(),
    SetUpName.OURS_GRPCIO: _Ours(transport="grpcio"),
    SetUpName.OURS_TWO: _Ours(processes=2),
    SetUpName.OURS_TWO_SESSIONS: _Ours(processes=2, session_headers=(SESSION_HEADER,)),
}
_ANSWER = """\
A request goes to the worker that already holds most of its prompt, unless that worker is so busy that computing the
rest elsewhere would be faster. To decide this, the gateway keeps an index of the blocks that every worker has in its
cache, and it adds up the tokens that each of them still has to compute. Both numbers change with every request, so
they are kept in memory and shared in the background. When a worker fails before it has said anything, the request is
sent to the next one of the list, with the same bytes. What the client sees is one answer in its own dialect, whole or
as a stream, and an error that says what happened when there is no answer at all.
"""


@dataclass(frozen=True, slots=True)
class SetUp:
    """A gateway that runs."""

    port: int
    envoy: int | None  # pids
    behind: int  # the processor, or SMG

    @property
    def pids(self) -> list[int]:
        """All that is counted."""
        return [self.behind] if self.envoy is None else [self.envoy, self.behind]


class SetUps:
    """What was started so far: a set of gateways for each model and each pace of the engines."""

    def __init__(self, processes: Processes, folder: Path, smg: Path) -> None:
        """`smg` is the executable. Raises CommandError if something is not installed."""
        self._processes = processes
        self._folder = folder
        self._smg = smg
        self._envoy = require_envoy(None).path
        if not smg.exists():
            raise CommandError(f"there is no SMG at {smg}: `make bench` installs it")
        self._models: dict[Model, Path] = {}
        self._engines: dict[tuple[Model, float], list[str]] = {}
        self._running: dict[tuple[SetUpName, Model, float], SetUp] = {}

    async def get(self, name: SetUpName, model: Model, step_s: float) -> SetUp:
        """Start it if it does not run yet, before engines that take so long for a token. Raises CommandError."""
        found = self._running.get((name, model, step_s))
        if found is None:
            workers = await self._workers(model, step_s)
            folder = self._folder / f"{name}-{model}-{_pace(step_s)}"
            folder.mkdir(parents=True, exist_ok=True)
            if name in _OURS:
                found = await self._start_ours(folder, workers, self._models[model], _OURS[name])
            elif name in _SMG_OF:
                smg = await self.get(_SMG_OF[name], model, step_s)
                found = await self._start_envoy_before(folder, smg)
            else:
                found = await self._start_smg(folder, workers, self._models[model], _CACHES.get(name, ()))
                if name is SetUpName.ENVOY_SMG_CACHES:
                    # An SMG of its own: its caches must not know a run's prompts from the one alone.
                    found = await self._start_envoy_before(folder, found)
            self._running[name, model, step_s] = found
        return found

    async def _workers(self, of: Model, step_s: float) -> list[str]:
        addresses = self._engines.get((of, step_s))
        if addresses is None:
            if of not in self._models:
                self._models[of] = await asyncio.to_thread(model.make, self._folder / f"model-{of}", of)
            found: list[str] = []
            script = self._folder / "answer.txt"
            script.write_text(_ANSWER)
            command = [sys.executable, "-m", "extproc.simulator", "--count", str(_ENGINES), "--model", model.MODEL]
            command += ["--tokenizer", str(self._models[of]), "--script", str(script)]
            command += ["--prefill-tokens-per-s", "0", "--decode-step-s", str(step_s), "--decode-sequence-s", "0"]
            # No reuse between requests: keeping account of it would cost the engines time, and tell nothing here.
            command += ["--kv-cache-tokens", "0", "--recorded-requests", "0"]

            async def announced(child: Child) -> None:
                while len(found) < _ENGINES:
                    found.append(json.loads(await child.next_line())["address"])

            await self._processes.start(f"engines {of} {_pace(step_s)}", command, ready=announced, announces=True)
            self._engines[of, step_s] = addresses = found
        return addresses

    async def _start_ours(self, folder: Path, workers: list[str], tokenizer: Path, ours: _Ours) -> SetUp:
        http, admin, metrics = free_ports(HOST, 3)
        settings: dict[str, Any] = {
            "listen": {
                "http": f"{HOST}:{http}",
                "admin": f"{HOST}:{admin}",
                "processor": ["unix:processor.sock"],
                "metrics": f"{HOST}:{metrics}",
            },
            "envoy": {"directory": "envoy", "concurrency": 1, "session_headers": list(ours.session_headers)},
            "processes": ours.processes,
            "pools": [
                {
                    "name": "main",
                    "models": [model.MODEL],
                    "workers": workers,
                    "tokenizer": str(tokenizer),
                    "chat_template": str(tokenizer / model.TEMPLATE),
                }
            ],
        }
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(settings))
        config = load_config(file)
        directory = Path(config.envoy.directory)
        write(build(config), directory)

        async def serves(_: Child) -> None:
            for socket in config.all_sockets:
                await processor_serves(socket)

        processor = await self._processes.start(
            f"processor {folder.name}",
            [*_SERVE, "--config", str(file), "--transport", ours.transport, "--settle-s", "0"],
            ready=serves,
            timeout_s=_START_S,
        )
        envoy = await self._start_envoy(f"Envoy {folder.name}", directory / BOOTSTRAP, admin)
        return SetUp(http, envoy.pid, processor.pid)

    async def _start_smg(self, folder: Path, workers: list[str], tokenizer: Path, caches: tuple[str, ...]) -> SetUp:
        http, metrics = free_ports(HOST, 2)
        command = [str(self._smg), "launch", "--host", HOST, "--port", str(http), "--prometheus-port", str(metrics)]
        command += ["--worker-urls", *(f"grpc://{worker}" for worker in workers), "--model-path", str(tokenizer)]
        command += ["--chat-template", str(tokenizer / model.TEMPLATE), *caches]
        child = await self._processes.start(
            f"SMG {folder.name}", command, ready=lambda _: _smg_ready(http), timeout_s=_START_S
        )
        return SetUp(http, None, child.pid)

    async def _start_envoy_before(self, folder: Path, smg: SetUp) -> SetUp:
        http, admin = free_ports(HOST, 2)
        printed = yaml.safe_load((self._any_printed()).read_text())
        bootstrap = folder / BOOTSTRAP
        bootstrap.write_text(yaml.safe_dump(plain_router(printed, http, admin, smg.port)))
        envoy = await self._start_envoy(f"Envoy {folder.name}", bootstrap, admin)
        return SetUp(http, envoy.pid, smg.behind)

    def _any_printed(self) -> Path:
        """A configuration that this gateway prints for a plain listener, for its settings."""
        folder = self._folder / "printed"
        folder.mkdir(exist_ok=True)
        file = folder / "config.yaml"
        pool = {"name": "main", "models": [model.MODEL], "workers": []}
        file.write_text(yaml.safe_dump({"envoy": {"directory": "envoy"}, "pools": [pool]}))
        config = load_config(file)
        write(build(config), Path(config.envoy.directory))
        return Path(config.envoy.directory) / BOOTSTRAP

    async def _start_envoy(self, name: str, bootstrap: Path, admin: int) -> Child:
        return await start_envoy(self._processes, self._envoy, bootstrap, HostPort(HOST, admin), 1, 1.0, name=name)


def _pace(step_s: float) -> str:
    return f"{step_s * 1e3:g}ms"


def plain_router(printed: dict[str, Any], http: int, admin: int, smg: int) -> dict[str, Any]:
    """A bootstrap with the printed listener's settings, but no processor: everything goes to SMG."""

    def at(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": HOST, "port_value": port}}

    (listener,) = printed["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    listener["address"] = at(http)
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] == "envoy.filters.http.router"]
    manager["early_header_mutation_extensions"] = []
    to_smg = {"match": {"prefix": "/"}, "route": {"cluster": "smg", "timeout": "0s", "idle_timeout": "0s"}}
    manager["route_config"]["virtual_hosts"][0]["routes"] = [to_smg]
    (processor,) = printed["static_resources"]["clusters"]
    cluster = {
        "name": "smg",
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": processor["circuit_breakers"],
        "load_assignment": {
            "cluster_name": "smg",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": at(smg)}}]}],
        },
    }
    return {
        "node": printed["node"],
        "admin": {"address": at(admin)},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
        "overload_manager": printed["overload_manager"],
    }


async def _smg_ready(port: int) -> None:
    """Wait until all workers are healthy; the tokenizer is loaded before that."""

    def healthy() -> int:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readiness", timeout=2.0) as response:
            return int(json.loads(response.read()).get("healthy_workers", 0))

    while True:
        with contextlib.suppress(OSError, ValueError):
            if await asyncio.to_thread(healthy) == _ENGINES:
                return
        await asyncio.sleep(0.1)
