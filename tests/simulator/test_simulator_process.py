"""Engines as a process of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from extproc.simulator.__main__ import main, read_script
from extproc.simulator.fleet import start_engines
from extproc.simulator.spec import OWN_MODEL, EngineSpec
from extproc.transport.listening import ListenError

COMMAND = (sys.executable, "-m", "extproc.simulator")


async def test_says_where_each_engine_serves_and_ends_on_sigterm(tmp_path):
    script = tmp_path / "script.txt"
    script.write_text("first\n---\nsecond\n")
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--count", "3", "--model", "tiny", "--script", str(script), "--decode-step-s", "0.001",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(30):
            lines = [json.loads(await process.stdout.readline()) for _ in range(3)]
        assert len({line["address"] for line in lines}) == 3
        assert {line["model"] for line in lines} == {"tiny"}
        for line in lines:
            assert line["url"] == f"grpc://{line['address']}"
            async with grpc.aio.insecure_channel(line["address"]) as channel:
                stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
                request = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[100]))
                (answer,) = [each async for each in stub.Generate(request)]
                assert answer.complete.finish_reason == "stop"
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            code = await process.wait()
    assert code == 0


def test_script_file_is_cut_at_its_separators(tmp_path):
    script = tmp_path / "script.txt"
    script.write_text("one\nstill one\n---\n\n---\nthree")
    assert read_script(script) == ("one\nstill one", "", "three")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tokenizer", "/nowhere"], "/nowhere"),
        (["--count", "0"], "--count"),
        (["--block-tokens", "0"], "--block-tokens"),
        (["--script", "/nowhere"], "/nowhere"),
        (["--listen", "unix:/tmp/x.sock", "--count", "2"], "--count"),
        (["--listen", "nonsense"], "nonsense"),
        (["--listen", "127.0.0.1:65535", "--count", "2"], "65535"),
        (["--answers", "script"], "--script"),
        (["--grace-s", "-1"], "--grace-s"),
        (["--fault-times", "0"], "--fault-times"),
    ],
)
def test_mistakes_in_the_command_line_are_named_and_exit_with_2(arguments, named, capsys):
    assert main(arguments) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "99999"], "'99999' is not a port"),
        (["--answers", "shout"], "'shout' is not one of echo, natural, script"),
        (["--fault-break-kind", "burn"], "'burn' is not one of error, headers, stall"),
    ],
)
def test_values_of_the_wrong_kind_exit_with_2(arguments, named, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert named in capsys.readouterr().err


def test_a_port_in_use_exits_with_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--port", port]) == 1
    assert port in capsys.readouterr().err


def test_the_help_names_every_option_with_an_example_and_exit_codes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    assert "extproc simulate --port 50051" in text
    assert "Exit status" in text
    assert "--fault-ignore-stop-strings" in text
    assert "None" not in text
    assert "(default: )" not in text
    assert str(OWN_MODEL) not in text


async def test_all_engines_start_or_none():
    (first,) = await start_engines([EngineSpec()])
    try:
        with pytest.raises(ListenError, match=first.address):
            await start_engines([EngineSpec(), EngineSpec(listen=first.address)])
    finally:
        await first.stop()


async def test_engine_serves_on_a_unix_socket(tmp_path):
    (engine,) = await start_engines([EngineSpec(listen=f"unix:{tmp_path}/engine.sock")])
    try:
        async with grpc.aio.insecure_channel(engine.address) as channel:
            stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
            assert (await stub.HealthCheck(pb.HealthCheckRequest())).healthy
    finally:
        await engine.stop()
