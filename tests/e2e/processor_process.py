"""The processor as a process of its own behind a real Envoy, to be measured, stopped and killed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from free_ports import free_port
from load_peers import CHAT, chat
from stack import START_S, eventually, running_envoy

from extproc.config.schema import Config
from extproc.simulator.spec import OWN_MODEL


@contextlib.asynccontextmanager
async def serve(file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """`extproc serve`, ended when this is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file), "--settle-s", "0"
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass
class Behind:
    """Envoy and what it needs; processors come and go."""

    file: Path
    config: Config
    envoy: asyncio.subprocess.Process
    http: httpx2.AsyncClient

    @property
    def port(self) -> int:
        return self.config.listen.http.port

    async def models(self) -> bool:
        """Whether a processor answers."""
        return (await self.http.get("/v1/models")).status_code == 200

    async def served(self) -> bool:
        """Whether an engine answers through a processor."""
        answer = await self.http.post(CHAT, content=chat(stream=False, max_tokens=1))
        return answer.status_code == 200

    async def stat(self, name: str) -> int:
        """One of Envoy's numbers; 0 where it has none."""
        text = (await self.http.get(f"http://{self.config.listen.admin}/stats?filter=^{name}$")).text
        return int(text.rpartition(": ")[2] or 0)

    async def metric(self, name: str) -> float:
        """One of the processor's numbers."""
        text = (await self.http.get(f"http://{self.config.listen.metrics}/metrics")).text
        return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


@contextlib.asynccontextmanager
async def behind_envoy(binary: Path, folder: Path, workers: list[str]) -> AsyncIterator[Behind]:
    """Everything but the processor, which `serve` starts."""
    values: dict[str, Any] = {
        "listen": {
            "http": f"127.0.0.1:{free_port()}",
            "admin": f"127.0.0.1:{free_port()}",
            "metrics": f"127.0.0.1:{free_port()}",
            "processor": [f"unix:{folder}/p.sock"],
        },
        "envoy": {"directory": str(folder / "xds")},
        "pools": [{"name": "main", "models": ["simulated"], "workers": workers, "tokenizer": str(OWN_MODEL)}],
        "health": {"interval_s": 0.2, "timeout_s": 30.0},
    }
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(values))
    config = Config.model_validate(values)
    async with (
        running_envoy(binary, config, folder) as envoy,
        httpx2.AsyncClient(base_url=f"http://{config.listen.http}", timeout=60.0) as http,
    ):
        yield Behind(file, config, envoy, http)


@contextlib.asynccontextmanager
async def serving(behind: Behind) -> AsyncIterator[asyncio.subprocess.Process]:
    """A processor that Envoy has found."""
    async with serve(behind.file) as process:

        async def answers() -> bool:
            assert process.returncode is None, "the processor ended"
            return await behind.models()

        await eventually(answers, "an answer of the processor through Envoy", START_S)
        yield process


def resident_bytes(process: asyncio.subprocess.Process) -> int:
    """Memory of a process at this moment."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
