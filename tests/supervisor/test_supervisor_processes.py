"""Several processes under one command: they start, are started again, stop in order, and never outlive it."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest
from e2e.stack import eventually
from supervisor_command import gone, is_alive, kill, serving, write_config
from typer.testing import CliRunner

from extproc.cli.main import app
from extproc.config.load import ConfigError, load


async def serves(folder: Path, process: int) -> bool:
    """Whether this process answers its health service on its own socket."""
    async with grpc.aio.insecure_channel(f"unix:{folder}/p-{process}.sock") as channel:
        try:
            answer = await channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)(b"", timeout=5)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer == b"\x08\x01")


def children_of(pid: int) -> str:
    """Their pids."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


async def test_each_process_serves_on_its_own_socket_and_a_signal_ends_all(tmp_path: Path) -> None:
    async with serving(*write_config(tmp_path)) as running:
        pids = [process["pid"] for process in await running.processes()]
        assert len(set(pids)) == 2
        assert [await serves(tmp_path, number) for number in (0, 1)] == [True, True]
        metrics = await running.metrics()
        assert metrics["extproc_processes"][(("state", "ready"),)] == 2
        assert metrics["extproc_tokenizer_info"][(("library", "fastokens"), ("pool", "main"))] == 1
        assert metrics["process_resident_memory_bytes"][()] > 100e6
        running.process.terminate()
        assert await running.ended() == 0
        await gone(*pids)
    assert "Traceback" not in running.log()
    assert not any((tmp_path / f"p-{number}.sock").exists() for number in (0, 1))


async def test_a_process_that_is_killed_comes_back_and_the_other_stays(tmp_path: Path) -> None:
    async with serving(*write_config(tmp_path)) as running:
        first, second = [process["pid"] for process in await running.processes()]
        kill(first)

        async def replaced() -> bool:
            process = (await running.processes())[0]
            return process["pid"] not in (None, first) and process["state"] == "ready"

        await eventually(replaced, "the killed process back", 30)
        assert (await running.processes())[1]["pid"] == second
        assert await serves(tmp_path, 0)
        assert await running.total("extproc_process_restarts_total") == 1


async def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    async with serving(*write_config(tmp_path)) as running:
        pids = [process["pid"] for process in await running.processes()]
        kill(running.process.pid)
        await running.ended()
        await gone(*pids)


async def test_a_stopped_process_does_not_hold_up_metrics_or_the_end(tmp_path: Path) -> None:
    """It cannot answer, nor end by itself."""
    async with serving(*write_config(tmp_path, limits={"drain_s": 0})) as running:
        first, second = [process["pid"] for process in await running.processes()]
        kill(first, signal.SIGSTOP)
        assert await running.total("extproc_processes") == 2
        running.process.terminate()
        assert await running.ended() == 0
        assert not is_alive(first)
        assert not is_alive(second)


async def test_a_second_signal_cuts_the_drain_short(tmp_path: Path) -> None:
    file, values = write_config(tmp_path)
    async with serving(file, values, "--settle-s", "600") as running:
        running.process.terminate()

        async def stopping() -> bool:
            readiness = await running.readiness()
            return bool(readiness["stopping"]) and all(process["stopping"] for process in readiness["processes"])

        await eventually(stopping, "all processes stopping")
        assert not (await running.readiness())["ready"]
        running.process.terminate()
        assert await running.ended() == 0


async def test_a_socket_in_use_is_one_clear_message(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "p-1.sock"))
        taken.listen()
        async with serving(*write_config(tmp_path), wait=False) as running:
            assert await running.ended() == 1
    assert f"Error: process 1: unix:{tmp_path}/p-1.sock: another process answers on it" in running.log()
    assert "Traceback" not in running.log()


async def test_an_address_for_operators_in_use_is_one_clear_message(tmp_path: Path) -> None:
    file, values = write_config(tmp_path)
    with socket.socket() as taken:
        host, _, port = values["listen"]["metrics"].rpartition(":")
        taken.bind((host, int(port)))
        taken.listen()
        for processes in ("1", "2"):
            async with serving(file, values, "--processes", processes, wait=False) as running:
                assert await running.ended() == 1
            assert "listen.metrics" in running.log()
            assert "choose another address" in running.log()
            assert "Traceback" not in running.log()


async def test_one_process_needs_no_supervisor(tmp_path: Path) -> None:
    file, values = write_config(tmp_path)
    async with serving(file, values, "--processes", "1", wait=False) as running:

        async def ready() -> bool:
            return bool((await running.readiness()).get("ready"))

        await eventually(ready, "the process ready", 30)
        assert (tmp_path / "p.sock").exists()
        assert "extproc_processes" not in await running.metrics()
        assert children_of(running.process.pid) == ""
        running.process.terminate()
        assert await running.ended() == 0


def test_envoys_files_name_the_sockets_of_all_processes(tmp_path: Path) -> None:
    file, _ = write_config(tmp_path)
    printed = CliRunner().invoke(app, ["envoy-config", "--config", str(file)]).stdout
    assert [f"p-{number}.sock" in printed for number in (0, 1, 2)] == [True, True, False]
    more = CliRunner().invoke(app, ["envoy-config", "--config", str(file), "--processes", "3"]).stdout
    assert [f"p-{number}.sock" in more for number in (0, 1, 2, 3)] == [True, True, True, False]


def test_ports_of_processes_follow_each_other(tmp_path: Path) -> None:
    file, _ = write_config(tmp_path, processes=3, listen={"processor": ["127.0.0.1:9002", "unix:s"]})
    config = load(file)
    assert [str(socket) for socket in config.all_sockets] == [
        "127.0.0.1:9002",
        f"unix:{tmp_path}/s-0",
        "127.0.0.1:9003",
        f"unix:{tmp_path}/s-1",
        "127.0.0.1:9004",
        f"unix:{tmp_path}/s-2",
    ]


@pytest.mark.parametrize(
    ("listen", "message"),
    [
        (
            {"processor": ["127.0.0.1:9002"], "admin": "127.0.0.1:9003"},
            "127.0.0.1:9003 is already taken by listen.admin",
        ),
        ({"processor": ["127.0.0.1:65535"]}, "the ports go beyond 65535"),
        ({"processor": ["unix:/run/" + 102 * "x"]}, "with 2 processes: the socket's path is 109 bytes long"),
    ],
)
def test_sockets_of_processes_that_cannot_be_are_named(tmp_path: Path, listen: dict[str, object], message: str) -> None:
    file, _ = write_config(tmp_path, listen=listen)
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(file)


async def test_a_file_of_envoys_with_other_sockets_is_told(tmp_path: Path) -> None:
    file, values = write_config(tmp_path)
    written = await asyncio.to_thread(
        CliRunner().invoke, app, ["envoy-config", "--config", str(file), "-o", str(tmp_path / "xds")]
    )
    assert written.exit_code == 0
    async with serving(file, values, "--processes", "3") as running:
        assert "names 2 sockets of the processor, and it serves on 3" in running.log()
