"""`extproc serve` with several processes, as a command, and what its address for operators tells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import yaml
from e2e.stack import eventually
from free_ports import free_port
from prometheus_client.parser import text_string_to_metric_families

from extproc.simulator.spec import OWN_MODEL

START_S = 60.0


class Serving:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process, metrics: int, log: Path, http: httpx2.AsyncClient) -> None:
        self.process = process
        self.http = http
        self._metrics = metrics
        self._log = log

    async def readiness(self) -> dict[str, Any]:
        """What `/readyz` says; nothing while nobody answers."""
        with contextlib.suppress(httpx2.TransportError):
            answer = (await self.http.get(f"http://127.0.0.1:{self._metrics}/readyz")).json()
            assert isinstance(answer, dict)
            return {"ready": answer["ready"], **answer["detail"]}
        return {}

    async def processes(self) -> list[dict[str, Any]]:
        """Each process with its state."""
        return (await self.readiness()).get("processes", [])

    async def all_ready(self) -> bool:
        """Whether every process can take requests."""
        assert self.process.returncode is None, self.log()
        processes = await self.processes()
        return bool(processes) and all(process["state"] == "ready" for process in processes)

    async def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Samples by name and labels."""
        text = (await self.http.get(f"http://127.0.0.1:{self._metrics}/metrics")).text
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found

    async def total(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels."""
        wanted = set(labels.items())
        return sum(value for have, value in (await self.metrics()).get(name, {}).items() if wanted <= set(have))

    async def ended(self) -> int:
        """The command's exit status."""
        return await asyncio.wait_for(self.process.wait(), 30)

    def log(self) -> str:
        return self._log.read_text()


def write_config(folder: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A configuration with two processes and the simulator's small model; `changes` are merged a level deep."""
    values: dict[str, Any] = {
        "processes": 2,
        "listen": {
            "http": f"127.0.0.1:{free_port()}",
            "admin": f"127.0.0.1:{free_port()}",
            "metrics": f"127.0.0.1:{free_port()}",
            "processor": [f"unix:{folder}/p.sock"],
        },
        "envoy": {"directory": str(folder / "xds")},
        "pools": [{"name": "main", "models": ["simulated"], "workers": ["127.0.0.1:1"], "tokenizer": str(OWN_MODEL)}],
    }
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(values.get(key), dict) else value
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(values))
    return file, values


@contextlib.asynccontextmanager
async def serving(file: Path, values: dict[str, Any], *options: str, wait: bool = True) -> AsyncIterator[Serving]:
    """The command, ready in all its processes; nothing of it is left afterwards."""
    log = file.with_name("serve.log")
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file), "--settle-s", "0", *options),
            stdout=sink,
            stderr=sink,
        )
    port = int(values["listen"]["metrics"].rpartition(":")[2])
    async with httpx2.AsyncClient(timeout=10.0) as http:
        running = Serving(process, port, log, http)
        try:
            if wait:
                await eventually(running.all_ready, "all processes ready", START_S)
            yield running
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def is_alive(pid: int) -> bool:
    """Whether there is such a process, which is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(*pids: int) -> None:
    """Wait until there are no such processes."""
    await eventually(lambda: not any(map(is_alive, pids)), "processes gone", 15.0)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
