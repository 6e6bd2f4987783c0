"""Children start in order, say why they failed, and never outlive their starter."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from extproc.cli import tether
from extproc.cli.processes import Child, Processes, StartError, describe_status, run

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
SLEEPER = [sys.executable, "-I", "-c", "import time; print('up', flush=True); time.sleep(600)"]


async def announced(child: Child) -> None:
    assert await child.next_line() == b"up\n"


def ends_within(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process that is not our child ends in time: waits on its pidfd, so a zombie counts as ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def script(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [sys.executable, str(path)]


STARTER = """
import asyncio, sys
from pathlib import Path
from extproc.cli.processes import run

async def main(processes):
    async def announced(child):
        await child.next_line()
    sleeper = [sys.executable, "-I", "-c", {body!r}]
    for name in ("first", "second"):
        child = await processes.start(name, sleeper, ready=announced, announces=True, grace_s={grace})
        print(child.pid, flush=True)
    await asyncio.Event().wait()

try:
    run(main, Path(sys.argv[1]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def starter(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that started two children, and their ids. The parameter is the children's program."""
    body = getattr(request, "param", "import time; print('up', flush=True); time.sleep(600)")
    command = script(tmp_path / "starter.py", STARTER.format(body=body, grace=600.0))
    process = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pids = [int(process.stdout.readline()) for _ in range(2)]
    yield process, pids
    process.kill()
    process.wait()
    process.stdout.close()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd and the death signal are Linux's")
class TestEndOfTheStarter:
    def test_killing_the_starter_ends_its_children(self, starter: tuple[subprocess.Popen[str], list[int]]) -> None:
        process, pids = starter
        process.kill()
        process.wait()
        assert all(ends_within(pid) for pid in pids)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_stops_the_children_and_then_the_starter(
        self, starter: tuple[subprocess.Popen[str], list[int]], number: signal.Signals
    ) -> None:
        process, pids = starter
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
        assert output == "interrupted\n"
        assert all(ends_within(pid, 0) for pid in pids)

    @pytest.mark.parametrize(
        "starter",
        [DEAF],
        indirect=True,
    )
    def test_a_second_signal_kills_children_that_do_not_stop(
        self, starter: tuple[subprocess.Popen[str], list[int]]
    ) -> None:
        process, pids = starter
        process.send_signal(signal.SIGINT)
        assert not ends_within(pids[1], 0.3)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
        assert output == "interrupted\n"
        assert all(ends_within(pid, 0) for pid in pids)

    def test_a_starter_that_is_already_gone_ends_the_child_before_it_begins(self, tmp_path: Path) -> None:
        marker = tmp_path / "begun"
        command = ["exec", str(os.getppid()), sys.executable, "-c", f"open({str(marker)!r}, 'w')"]
        status = subprocess.run([sys.executable, "-I", "-S", tether.__file__, *command], check=False).returncode
        assert status == 128 + signal.SIGKILL
        assert not marker.exists()


class TestWatching:
    """The way of platforms without a death signal; it works on every POSIX system."""

    def start(self, body: str) -> tuple[subprocess.Popen[str], int]:
        theirs, lifeline = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", tether.__file__, "watch", str(theirs), sys.executable, "-c", body],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        return process, lifeline

    def test_the_end_of_the_lifeline_kills_the_whole_group(self) -> None:
        process, lifeline = self.start("import time; print('up', flush=True); time.sleep(600)")
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        os.close(lifeline)
        assert process.wait(10) == -signal.SIGKILL
        assert process.stdout.read() == ""  # the command's end of the pipe is closed: it is gone too
        process.stdout.close()

    def test_signals_and_the_exit_status_pass_through(self) -> None:
        body = (
            "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
            "print('up', flush=True); time.sleep(600)"
        )
        process, lifeline = self.start(body)
        assert process.stdout
        process.stdout.readline()
        process.terminate()
        assert process.wait(10) == 7
        process.stdout.close()
        os.close(lifeline)


class TestStarting:
    async def test_a_child_that_announces_itself_is_ready_and_its_output_is_logged(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        await processes.start("some engine", SLEEPER, ready=announced, announces=True)
        await processes.stop()
        assert (tmp_path / "some-engine.log").read_text() == "up\n"

    async def test_an_early_end_names_the_part_its_exit_code_and_its_last_words(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        command = [sys.executable, "-c", "import sys; print('no such model'); sys.exit(3)"]
        with pytest.raises(StartError, match=r"(?s)^engines ended with exit code 3 while starting.*no such model"):
            await processes.start("engines", command, ready=lambda child: asyncio.Event().wait())
        await processes.stop()

    async def test_a_part_that_is_not_ready_in_time_is_named_and_stopped(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        with pytest.raises(StartError, match=r"^Envoy was not ready after 0\.2 s"):
            await processes.start("Envoy", SLEEPER, ready=lambda child: asyncio.Event().wait(), timeout_s=0.2)
        await processes.stop()

    async def test_a_failing_readiness_check_is_told(self, tmp_path: Path) -> None:
        async def refuse(child: Child) -> None:
            raise ValueError("the model is another one")

        processes = Processes(tmp_path)
        with pytest.raises(StartError, match="processor did not become ready: the model is another one"):
            await processes.start("processor", SLEEPER, ready=refuse)
        await processes.stop()

    async def test_a_program_that_does_not_exist_is_named(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        with pytest.raises(StartError, match=r"(?s)exit code 127.*cannot start /no/such/envoy: No such file"):
            await processes.start("Envoy", ["/no/such/envoy"], ready=lambda child: asyncio.Event().wait())
        await processes.stop()


class TestStopping:
    async def test_children_stop_in_reverse_order_after_their_drain(self, tmp_path: Path) -> None:
        order: list[str] = []

        def drain(name: str) -> object:
            async def note() -> None:
                order.append(name)

            return note

        processes = Processes(tmp_path)
        for name in ("engines", "processor", "Envoy"):
            await processes.start(name, SLEEPER, ready=announced, announces=True, before_stop=drain(name))  # type: ignore[arg-type]
        await processes.stop()
        assert order == ["Envoy", "processor", "engines"]

    async def test_a_child_that_ignores_sigterm_is_killed_when_its_grace_is_over(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        command = [sys.executable, "-c", DEAF]
        child = await processes.start("deaf", command, ready=announced, announces=True, grace_s=0.2)
        await processes.stop()
        assert await child.wait() == -signal.SIGKILL

    async def test_what_a_child_started_ends_with_it(self, tmp_path: Path) -> None:
        body = (
            "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
            "print(p.pid, flush=True)"
        )
        processes = Processes(tmp_path)
        command = [sys.executable, "-c", body]
        grandchildren: list[int] = []

        async def tells_its_child(child: Child) -> None:
            grandchildren.append(int(await child.next_line()))

        await processes.start("parent", command, ready=tells_its_child, announces=True)
        await processes.stop()
        assert ends_within(grandchildren[0])

    async def test_the_first_end_is_reported(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        await processes.start("steady", SLEEPER, ready=announced, announces=True)
        child = await processes.start("Envoy", SLEEPER, ready=announced, announces=True)
        os.kill(child.pid, signal.SIGSEGV)
        assert (await processes.first_end()).startswith("Envoy ended with signal SIGSEGV. What it wrote last:\n")
        await processes.stop()

    async def test_what_a_killed_child_wrote_is_not_told_as_the_cause(self, tmp_path: Path) -> None:
        processes = Processes(tmp_path)
        child = await processes.start("engines", SLEEPER, ready=announced, announces=True)
        child.kill()
        said = await processes.first_end()
        assert said.startswith("engines ended with signal SIGKILL, sent by somebody else")
        assert "up" not in said
        await processes.stop()

    @pytest.mark.parametrize("stay", [True, False])
    async def test_a_log_is_named_only_if_it_stays(self, tmp_path: Path, stay: bool) -> None:
        processes = Processes(tmp_path, logs_stay=stay)
        with pytest.raises(StartError) as caught:
            await processes.start("Envoy", ["/no/such"], ready=lambda child: asyncio.Event().wait())
        await processes.stop()
        assert (str(tmp_path) in str(caught.value)) is stay


def test_run_stops_the_children_when_the_work_fails(tmp_path: Path) -> None:
    children: list[Child] = []

    async def work(processes: Processes) -> None:
        children.append(await processes.start("engines", SLEEPER, ready=announced, announces=True))
        raise ValueError("the tour failed")

    with pytest.raises(ValueError, match="the tour failed"):
        run(work, tmp_path)
    assert ends_within(children[0].pid, 0)


@pytest.mark.parametrize(("status", "words"), [(3, "exit code 3"), (-9, "signal SIGKILL"), (-127, "signal 127")])
def test_an_exit_status_is_told_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words
