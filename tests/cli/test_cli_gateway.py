"""`demo` and `up` with real engines' stand-ins, a real processor and a real Envoy."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from extproc.cli.chat import ChatClient
from extproc.cli.ports import free_ports

pytestmark = pytest.mark.envoy

MARK = "EXTPROC_TEST_MARK"
START_S = 60.0

FAKE_ENVOY = """#!/bin/sh
if [ "$1" = --version ]; then
    echo "envoy  version: abc/1.40.0/Clean/RELEASE/BoringSSL"
    exit
fi
echo "cannot bind to that address" >&2
exit 9
"""


class Command:
    """A running `extproc …`, its output, and everything that it started."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "extproc.cli.main", *arguments],
            cwd=folder,
            env={**os.environ, MARK: self._mark, "TMPDIR": str(folder), "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.output = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read on until the output matches. The command's end before that is an error."""
        stdout: IO[bytes] | None = self.process.stdout
        assert stdout
        while not (match := re.search(pattern, self.output)):
            assert select.select([stdout], [], [], START_S)[0], f"nothing more came after:\n{self.output}"
            data = os.read(stdout.fileno(), 65536)
            assert data, f"the command ended with {self.process.wait()}:\n{self.output}"
            self.output += data.decode()
        return match

    def end(self) -> int:
        """Read to the end of the output. Returns the exit status."""
        stdout: IO[bytes] | None = self.process.stdout
        assert stdout
        self.output += stdout.read().decode()
        return self.process.wait(START_S)

    def living(self) -> list[int]:
        """Processes that inherited our mark and live. Zombies have no environment any more."""
        entry = f"{MARK}={self._mark}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if entry in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def close(self) -> None:
        """Leave nothing behind, whatever the test found."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    commands: list[Command] = []

    def start_command(*arguments: str) -> Command:
        command = Command(list(arguments), tmp_path)
        commands.append(command)
        return command

    yield start_command
    for command in reversed(commands):
        command.close()


def ended_within(pids: list[int], seconds: float = 10.0) -> bool:
    """Whether all these processes, which are none of our children, end in time."""
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pidfd], [], [], seconds)[0]:
                return False
        finally:
            os.close(pidfd)
    return True


class TestDemo:
    def test_it_tours_stays_serves_and_ends_with_ctrl_c(self, start: Start, tmp_path: Path) -> None:
        demo = start("demo")
        port = int(demo.wait_for(r"Base URL: http://127\.0\.0\.1:(\d+)/v1")[1])
        demo.wait_for("Ctrl-C ends everything")
        assert "from openai import OpenAI" in demo.output
        assert "failed" not in demo.output
        answer = ChatClient("127.0.0.1", port, "simulated").ask([{"role": "user", "content": "Hello"}], max_tokens=5)
        assert (answer.status, answer.completion_tokens, answer.error) == (200, 5, None)
        assert answer.worker in {f"engine-{number}" for number in range(1, 5)}
        demo.process.send_signal(signal.SIGINT)
        assert demo.end() == 0
        assert demo.living() == []
        assert list(tmp_path.iterdir()) == []

    def test_killing_it_ends_everything_that_it_started(self, start: Start) -> None:
        demo = start("demo")
        demo.wait_for("A streamed answer")
        started = demo.living()
        assert len(started) >= 4  # itself, engines, processor, Envoy
        demo.process.kill()
        assert ended_within(started)

    @pytest.mark.parametrize(
        ("number", "moment"),
        [(signal.SIGTERM, "engines with the model"), (signal.SIGINT, "assistant  "), (signal.SIGHUP, "assistant  ")],
    )
    def test_interrupting_it_before_the_end_of_the_tour_ends_everything(
        self, start: Start, number: signal.Signals, moment: str
    ) -> None:
        demo = start("demo")
        demo.wait_for(moment)
        demo.process.send_signal(number)
        assert demo.end() == 130
        assert demo.output.endswith("\ninterrupted\n")
        assert demo.living() == []

    def test_a_part_that_fails_to_start_is_named_with_the_end_of_its_log(self, start: Start, tmp_path: Path) -> None:
        fake = tmp_path / "envoy"
        fake.write_text(FAKE_ENVOY)
        fake.chmod(0o755)
        demo = start("demo", "--once", "--envoy", str(fake))
        assert demo.end() == 1
        assert "Error: Envoy ended with exit code 9 while starting." in demo.output
        assert "cannot bind to that address" in demo.output
        assert "Traceback" not in demo.output
        assert demo.living() == []

    def test_a_part_that_dies_later_ends_the_demo_with_a_message(self, start: Start) -> None:
        demo = start("demo")
        demo.wait_for("Ctrl-C ends everything")
        (engines,) = [pid for pid in demo.living() if b"extproc.simulator" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(engines, signal.SIGKILL)
        assert demo.end() == 1
        assert "engines ended with signal SIGKILL" in demo.output
        assert demo.living() == []


class TestUp:
    def engine(self, start: Start, model: str) -> str:
        return start("simulate", "--model", model, "--decode-step-s", "0").wait_for(r'"url": "(grpc://[^"]+)"')[1]

    def test_models_and_tokenizers_are_learned_from_the_workers(self, start: Start, tmp_path: Path) -> None:
        urls = [self.engine(start, model) for model in ("org/one", "org/two", "org/one")]
        (port,) = free_ports("127.0.0.1", 1)
        state = tmp_path / "state"
        up = start("up", "--worker-urls", *urls, "--host", "127.0.0.1", "--port", str(port), "--state-dir", str(state))
        up.wait_for("Ctrl-C to stop")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/v1/models")
        models = {card["id"] for card in json.loads(connection.getresponse().read())["data"]}
        connection.close()
        assert models == {"org/one", "org/two"}
        for model in models:
            answer = ChatClient("127.0.0.1", port, model).ask([{"role": "user", "content": "Hello"}])
            assert (answer.status, answer.text, answer.error) == (200, "Hello", None)
        up.process.send_signal(signal.SIGINT)
        assert up.end() == 0
        assert up.living() == []
        checked = start("check", "--config", str(state / "config.yaml"))
        assert checked.end() == 0
        assert "2 pools: org-one (2 workers), org-two (1 worker)" in checked.output

    def test_a_worker_that_does_not_answer_is_named(self, start: Start) -> None:
        (dead, port) = free_ports("127.0.0.1", 2)
        command = ["up", "--worker-urls", f"grpc://127.0.0.1:{dead}", "--port", str(port)]
        up = start(*command, "--worker-startup-timeout-secs", "0.5")
        assert up.end() == 1
        assert f"worker 127.0.0.1:{dead} was not healthy within 0.5 s" in up.output
        assert "Traceback" not in up.output
