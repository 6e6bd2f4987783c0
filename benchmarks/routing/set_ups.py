"""Starts what is measured: engines in one process, and this gateway or SMG in front of them, new for every run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gateway import model
from benchmarks.routing.contenders import OURS, WITH_EVENTS, Contender, smg_intervals
from extproc.cli.check import load_config
from extproc.cli.errors import CommandError
from extproc.cli.ports import free_ports
from extproc.cli.processes import Child, Processes
from extproc.cli.stack import processor_serves, require_envoy, start_envoy
from extproc.config.address import HostPort
from extproc.envoyconfig.files import BOOTSTRAP, build, write

HOST = "127.0.0.1"
SPEED_SPREAD = 0.2
SPEED_SEED = 5
_SERVE = (sys.executable, "-m", "extproc.cli.main", "serve")
_START_S = 120.0
_ANSWER = (
    "The quick brown fox jumps over the lazy dog while the river runs on and the light of the morning is still low."
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of a run."""

    workers: int
    kv_tokens: int  # of each
    prefill_tokens_per_s: float
    speed_up: float


class Engines:
    """A process of engines."""

    def __init__(self, child: Child, addresses: list[str], control: Path) -> None:
        self.pid = child.pid
        self.addresses = addresses
        self._control = control

    async def order(self, **order: object) -> dict[str, Any]:
        """Tell them something; see the simulator's `commands`."""
        reader, writer = await asyncio.open_unix_connection(self._control)
        try:
            writer.write(json.dumps(order).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await reader.readline())
        finally:
            writer.close()
        return answer


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway and its engines."""

    contender: Contender
    port: int
    envoy: int | None  # pids
    behind: int  # the processor, or SMG
    engines: Engines
    extra: Engines | None  # a worker that is not known yet
    admin: int  # port where workers are added

    @property
    def gateway_pids(self) -> list[int]:
        """All processes of the gateway."""
        return [self.behind] if self.envoy is None else [self.envoy, self.behind]


class SetUps:
    """Starts runs. Logs and configurations go to a folder."""

    def __init__(self, folder: Path, smg: Path) -> None:
        """`smg` is the executable. Raises CommandError if something is not installed."""
        self._folder = folder
        self._smg = smg
        self._envoy = require_envoy(None).path
        self._model = model.make(folder / "model")
        self._answer = folder / "answer.txt"
        self._answer.write_text(_ANSWER)
        self._runs = 0
        if not smg.exists():
            raise CommandError(f"there is no SMG at {smg}: `make bench-routing` installs it")

    @property
    def tokenizer(self) -> Path:
        """The file that all of them tokenize with."""
        return self._model / "tokenizer.json"

    @contextlib.asynccontextmanager
    async def running(self, contender: Contender, fleet: Fleet, *, extra: bool) -> AsyncIterator[Running]:
        """A gateway with engines that have empty caches, until the end of the block; `extra`: one engine more."""
        self._runs += 1
        folder = self._folder / f"{self._runs}-{contender}"
        folder.mkdir()
        processes = Processes(folder)
        try:
            events = contender in WITH_EVENTS
            engines = await self._start_engines(processes, folder, "engines", fleet, fleet.workers, events)
            more = await self._start_engines(processes, folder, "extra", fleet, 1, events) if extra else None
            if contender in OURS:
                yield await self._start_ours(processes, folder, contender, engines, more, fleet)
            else:
                yield await self._start_smg(processes, folder, contender, engines, more, fleet)
        finally:
            await processes.stop()

    async def _start_engines(
        self, processes: Processes, folder: Path, name: str, fleet: Fleet, count: int, events: bool
    ) -> Engines:
        control = folder / f"{name}.sock"
        command = [sys.executable, "-m", "extproc.simulator", "--count", str(count), "--model", model.MODEL]
        command += ["--tokenizer", str(self._model), "--script", str(self._answer), "--recorded-requests", "0"]
        command += ["--kv-cache-tokens", str(fleet.kv_tokens)]
        command += ["--prefill-tokens-per-s", str(fleet.prefill_tokens_per_s), "--speed-up", str(fleet.speed_up)]
        command += ["--speed-spread", str(SPEED_SPREAD), "--speed-seed", str(SPEED_SEED)]
        command += ["--control", str(control), "--grace-s", "0"]
        if not events:
            command.append("--no-kv-events")
        found: list[str] = []

        async def announced(child: Child) -> None:
            while len(found) < count:
                found.append(json.loads(await child.next_line())["address"])

        child = await processes.start(name, command, ready=announced, announces=True)
        return Engines(child, found, control)

    async def _start_ours(
        self,
        processes: Processes,
        folder: Path,
        contender: Contender,
        engines: Engines,
        extra: Engines | None,
        fleet: Fleet,
    ) -> Running:
        http, admin, metrics = free_ports(HOST, 3)
        pool: dict[str, Any] = {
            "name": "main",
            "models": [model.MODEL],
            "workers": engines.addresses,
            "tokenizer": str(self._model),
            "chat_template": str(self._model / model.TEMPLATE),
            "policy": contender.value,
        }
        settings: dict[str, Any] = {
            "listen": {
                "http": f"{HOST}:{http}",
                "admin": f"{HOST}:{admin}",
                "processor": ["unix:processor.sock"],
                "metrics": f"{HOST}:{metrics}",
            },
            "envoy": {"directory": "envoy", "concurrency": 1},
            "pools": [pool],
        }
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(settings))
        config = load_config(file)
        directory = Path(config.envoy.directory)
        write(build(config), directory)
        processor = await processes.start(
            "processor",
            [*_SERVE, "--config", str(file), "--settle-s", "0"],
            ready=lambda _: processor_serves(config.listen.processor[0]),
            timeout_s=_START_S,
        )
        envoy = await start_envoy(
            processes, self._envoy, directory / BOOTSTRAP, HostPort(HOST, admin), 1, 1.0, name="envoy"
        )
        return Running(contender, http, envoy.pid, processor.pid, engines, extra, metrics)

    async def _start_smg(
        self,
        processes: Processes,
        folder: Path,
        contender: Contender,
        engines: Engines,
        extra: Engines | None,
        fleet: Fleet,
    ) -> Running:
        http, metrics = free_ports(HOST, 2)
        command = [str(self._smg), "launch", "--host", HOST, "--port", str(http), "--prometheus-port", str(metrics)]
        command += ["--worker-urls", *(f"grpc://{address}" for address in engines.addresses)]
        command += ["--model-path", str(self._model), "--chat-template", str(self._model / model.TEMPLATE)]
        command += smg_intervals(fleet.speed_up)
        child = await processes.start(
            "smg", command, ready=lambda _: _smg_ready(http, fleet.workers), timeout_s=_START_S
        )
        return Running(contender, http, None, child.pid, engines, extra, http)


async def add_worker(running: Running) -> None:
    """Make the extra worker known to the gateway that runs. Raises CommandError where that does not work."""
    assert running.extra is not None
    (address,) = running.extra.addresses
    worker = {"pool": "main", "address": address} if running.contender in OURS else {"url": f"grpc://{address}"}
    await asyncio.to_thread(_post, f"http://{HOST}:{running.admin}/workers", worker)


def _post(url: str, body: object) -> None:
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10.0) as response:
            response.read()
    except OSError as error:
        raise CommandError(f"{url}: {error}") from error


async def _smg_ready(port: int, workers: int) -> None:
    """Wait until all workers are healthy; the tokenizer is loaded before that."""

    def healthy() -> int:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readiness", timeout=2.0) as response:
            return int(json.loads(response.read()).get("healthy_workers", 0))

    while True:
        with contextlib.suppress(OSError, ValueError):
            if await asyncio.to_thread(healthy) == workers:
                return
        await asyncio.sleep(0.1)
