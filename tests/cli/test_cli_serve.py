"""`extproc serve` as a process: it serves on its sockets, and stops in order or at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from extproc.cli import tether
from extproc.cli.ports import free_ports
from extproc.cli.stack import processor_serves
from extproc.config.address import HostPort, UnixPath
from extproc.simulator.spec import OWN_MODEL

CONFIG = """
listen:
  processor: ["unix:processor.sock", "127.0.0.1:{port}"]
  metrics: null
log: {{format: json, level: info}}
pools:
  - name: tiny
    models: [tiny]
    workers: ["127.0.0.1:1"]
    tokenizer: {tokenizer}
    context_tokens: 512
"""


@pytest.fixture
def port() -> int:
    return free_ports("127.0.0.1", 1)[0]


@pytest.fixture
def config(tmp_path: Path, port: int) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG.format(port=port, tokenizer=OWN_MODEL))
    return file


async def serve(config: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", tether.__file__, "exec", str(os.getpid())),  # ends with a run that is killed
        sys.executable,
        *("-m", "extproc.cli.main", "serve", "--config", str(config), *options),
        stdout=subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def stops_serving(target: str) -> None:
    """Wait until the health service answers NOT_SERVING."""
    async with grpc.aio.insecure_channel(target) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        while True:
            if await check(b"") == b"\x08\x02":
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("transport", ["ngh2", "grpcio"])
async def test_it_serves_on_every_address_and_a_signal_ends_it(config: Path, port: int, transport: str) -> None:
    processor = await serve(config, "--transport", transport, "--settle-s", "0")
    async with asyncio.timeout(30):
        await processor_serves(UnixPath(str(config.parent / "processor.sock")))
        await processor_serves(HostPort("127.0.0.1", port))
        processor.terminate()
        _, log = await processor.communicate()
    assert processor.returncode == 0, log.decode()
    assert b"Traceback" not in log
    assert not (config.parent / "processor.sock").exists()


async def test_every_line_of_its_log_is_json(config: Path, port: int) -> None:
    processor = await serve(config, "--settle-s", "0")
    async with asyncio.timeout(30):
        await processor_serves(HostPort("127.0.0.1", port))
        processor.terminate()
        _, log = await processor.communicate()
    lines = log.splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)


async def test_a_second_signal_does_not_wait_for_anybody_to_notice(config: Path, port: int) -> None:
    processor = await serve(config, "--settle-s", "600")
    async with asyncio.timeout(30):
        await processor_serves(HostPort("127.0.0.1", port))
        processor.terminate()
        await stops_serving(f"127.0.0.1:{port}")
        assert processor.returncode is None
        processor.terminate()
        _, log = await processor.communicate()
    assert processor.returncode == 0, log.decode()
    assert b"Traceback" not in log


async def test_an_address_in_use_is_one_clear_message(config: Path, port: int) -> None:
    first = await serve(config, "--settle-s", "0")
    async with asyncio.timeout(30):
        await processor_serves(HostPort("127.0.0.1", port))
        second = await serve(config)
        _, log = await second.communicate()
        first.terminate()
        await first.communicate()
    assert second.returncode == 1
    assert b"Error: " in log
    assert b"Traceback" not in log
