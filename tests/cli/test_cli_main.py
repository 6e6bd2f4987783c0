"""The command line: help worth reading, one clear message for each mistake, exit codes."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from extproc.cli.main import app

COMMANDS = ("serve", "check", "envoy-config", "up", "demo", "simulate")

GOOD = """
pools:
  - name: tiny
    models: [tiny]
    workers: [grpc://127.0.0.1:50051, grpc://127.0.0.1:50052]
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1"})


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--" in result.output
    assert f"    extproc {command}" in result.output
    assert "Exit status" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_cut_or_wrapped_on_a_narrow_terminal(command: str) -> None:
    narrow = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"}).output
    wide = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).output
    options = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", wide, re.MULTILINE)
    assert options
    for option in options:
        assert re.search(rf"^ +(?:-\w, )?{option}(?:\s|$)", narrow, re.MULTILINE), option
    assert max(map(len, narrow.splitlines())) <= 80
    assert not re.search(r"<(bool|str|path|int|float)", narrow)


def test_help_loads_none_of_the_rooms_behind_the_commands() -> None:
    heavy = ("grpc", "google.protobuf", "tokenizers", "fastokens", "pydantic", "envoy_data_plane", "ngh2", "uvloop")
    program = f"import sys; import extproc.cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_is_shown() -> None:
    result = run("--version")
    assert (result.exit_code, result.output.split()[0]) == (0, "llm-extproc")


def test_a_good_configuration_is_told_so(tmp_path: Path) -> None:
    result = run("check", "--config", write(tmp_path / "gateway.yaml", GOOD))
    assert result.exit_code == 0
    assert "good. 1 pool: tiny (2 workers)" in result.stdout


@pytest.mark.parametrize("command", ["check", "serve", "envoy-config"])
def test_mistakes_in_a_configuration_are_named_with_their_lines(tmp_path: Path, command: str) -> None:
    file = write(tmp_path / "gateway.yaml", GOOD.replace("models:", "modles:"))
    result = run(command, "--config", file)
    assert result.exit_code == 1
    assert f"{file}:4:" in result.stderr
    assert "did you mean 'models'" in result.stderr
    assert "Traceback" not in result.output


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run("check", "--config", str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert "none.yaml: no such file" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "--config"),
        (["serv"], "serve"),
        (["up"], "--worker-urls"),
        (["up", "--worker-urls"], "--worker-urls"),
        (["up", "--worker-urls", "http://a:1"], "grpc://a:1"),
        (["up", "--worker-urls", "grpc://a"], "no port"),
        (["up", "--worker-urls", ","], "no worker"),
        (["up", "--worker-urls", "grpc://a:1", "--policy", "session"], "needs a key"),
        (["up", "--worker-urls", "grpc://a:1", "--policy", "fastest"], "ttft, least_load"),
        (["up", "--worker-urls", "grpc://a:1", "--host", "example.org"], "host name"),
        (["demo", "--port", "70000"], "65535"),
        (["simulate", "--count", "0"], "--count"),
        (["simulate", "--port", "99999"], "--port"),
        (["simulate", "--tokenizer", "no-such-folder"], "no-such-folder"),
    ],
)
def test_mistakes_in_the_command_line_exit_with_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert "Value error" not in result.output


def test_envoys_files_are_written_where_they_name_each_other(tmp_path: Path) -> None:
    file = write(tmp_path / "gateway.yaml", GOOD)
    folder = tmp_path / "envoy"
    result = run("envoy-config", "--config", file, "--output", str(folder))
    assert result.exit_code == 0
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.yaml")) == [
        "bootstrap.yaml",
        "cds.yaml",
        "eds/tiny.yaml",
    ]
    assert str(folder / "cds.yaml") in (folder / "bootstrap.yaml").read_text()
    assert "envoy.directory" in result.stderr
    again = run("envoy-config", "--config", file, "--output", str(folder))
    assert again.stdout.count("(unchanged)") == 3


def test_envoys_files_are_printed_as_yaml_documents(tmp_path: Path) -> None:
    result = run("envoy-config", "--config", write(tmp_path / "gateway.yaml", GOOD))
    assert result.exit_code == 0
    documents = list(yaml.safe_load_all(result.stdout))
    assert len(documents) == 3
    assert "static_resources" in documents[-1]


def test_a_worker_that_cannot_be_looked_up_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "gateway.yaml", GOOD.replace("127.0.0.1:50051", "no-such-host.invalid:50051"))
    result = run("envoy-config", "--config", file)
    assert result.exit_code == 1
    assert "no-such-host.invalid:50051 cannot be looked up" in result.stderr


@pytest.mark.parametrize("command", [["up", "--worker-urls", "grpc://127.0.0.1:1"], ["demo"]])
def test_an_envoy_that_is_not_there_is_told_before_anything_starts(tmp_path: Path, command: list[str]) -> None:
    result = run(*command, "--envoy", str(tmp_path / "no-envoy"))
    assert result.exit_code == 1
    assert "no Envoy binary at" in result.stderr


def test_a_port_that_is_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run("demo", "--port", port)
    assert result.exit_code == 1
    assert f"port {port} is in use" in result.stderr
