"""Child processes that start in order, say why they did not, stop in reverse order, and never outlive us.

Every child runs in a session of its own, so Ctrl-C in a terminal reaches only us and we decide the order, and behind
`tether.py`, so it ends with us also after SIGKILL. What a child says goes to a log file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from extproc.cli import tether
from extproc.cli.errors import CommandError

TAIL_LINES = 25
"""How much of a log is shown when a part fails."""

_KEPT_LINES = 64
"""Of a child's standard output, until somebody asks for them. The log has them all."""

_SENT = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that come from outside: what the process wrote before has nothing to do with its end."""

Ready = Callable[["Child"], Awaitable[object]]
"""Returns once the child serves."""


class StartError(CommandError):
    """A part did not start. The message is for people: which part, why, and the end of its log."""


class Child:
    """One running process."""

    def __init__(
        self,
        name: str,
        log: Path,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader | None,
        lifeline: int,
    ) -> None:
        self.name = name
        self.log = log
        self.pid = process.pid
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(_KEPT_LINES)
        self._process = process
        self._lifeline = lifeline
        self._pump = asyncio.create_task(self._copy(output)) if output else None
        self._before_stop: Callable[[], Awaitable[object]] | None = None
        self._grace_s = 0.0

    async def next_line(self) -> bytes:
        """The next line on the child's standard output, for children that announce themselves that way."""
        return await self._lines.get()

    async def wait(self) -> int:
        """The exit status, negative after a signal, once the child has ended and its log is complete."""
        status = await self._process.wait()
        if self._pump:
            # Not for long: something that the child started may hold the pipe open.
            await asyncio.wait({self._pump}, timeout=1.0)
        return status

    def tail(self) -> str:
        """The last lines of the log."""
        text = self.log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    async def stop(self) -> None:
        """End the child in order: its own drain, SIGTERM, and SIGKILL once the time of grace is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                if self._before_stop and self._process.returncode is None:
                    await self._until_ended(self._before_stop())
                if self._process.returncode is None:
                    self._process.terminate()
                await self.wait()
        self.kill()
        await self.wait()
        self._close_lifeline()

    def kill(self) -> None:
        """End the child and whatever it started in its process group, at once."""
        # The group outlives its leader where helpers of the child are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _until_ended(self, work: Awaitable[object]) -> None:
        """Await work that makes no sense once the child has ended. Its failure does not hinder the stop."""
        task = asyncio.ensure_future(work)
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            ended.cancel()
            await asyncio.gather(task, ended, return_exceptions=True)

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    async def _copy(self, output: asyncio.StreamReader) -> None:
        with self.log.open("ab", buffering=0) as log:
            while line := await output.readline():
                if not self._lines.full():
                    self._lines.put_nowait(line)
                log.write(line)


class Processes:
    """The children of one command."""

    def __init__(self, logs: Path, *, logs_stay: bool = False) -> None:
        """`logs` is the folder for the log files, `<name>.log` each; it must exist.

        `logs_stay`: it is there after the command, so messages may name it.
        """
        self._logs = logs
        self._logs_stay = logs_stay
        self._children: list[Child] = []

    async def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        ready: Ready,
        timeout_s: float = 30.0,
        announces: bool = False,
        before_stop: Callable[[], Awaitable[object]] | None = None,
        grace_s: float = 10.0,
    ) -> Child:
        """Start a child and wait until it is ready.

        `announces`: its standard output is read for `Child.next_line` on the way to the log. `before_stop` is awaited
        before SIGTERM, `grace_s` bounds both. Raises StartError if it ends or is not ready in time; it is stopped then.
        """
        child = await self._spawn(name, command, announces)
        child._before_stop = before_stop
        child._grace_s = grace_s
        self._children.append(child)
        ready_task = asyncio.ensure_future(ready(child))
        ended = asyncio.create_task(child.wait())
        try:
            done, _ = await asyncio.wait({ready_task, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended in done:
                raise StartError(self._end_of(child, ended.result(), " while starting"))
            if not done:
                raise StartError(self._failure(child, f"was not ready after {timeout_s:g} s"))
            try:
                ready_task.result()
            except Exception as error:
                raise StartError(self._failure(child, f"did not become ready: {error}")) from error
        finally:
            for task in (ready_task, ended):
                task.cancel()
            await asyncio.gather(ready_task, ended, return_exceptions=True)
        return child

    async def first_end(self) -> str:
        """Wait until some child ends by itself. Returns what is to be said about it."""
        waits = {asyncio.create_task(child.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        task = done.pop()
        return self._end_of(waits[task], task.result())

    async def stop(self) -> None:
        """Stop all children, the last started first."""
        while self._children:
            await self._children[-1].stop()
            self._children.pop()

    def kill(self) -> None:
        """Kill all children at once. `stop` then returns quickly."""
        for child in self._children:
            child.kill()

    def _end_of(self, child: Child, status: int, when: str = "") -> str:
        """What is to be said about a child that ended."""
        what = f"ended with {describe_status(status)}{when}"
        if -status not in _SENT:
            return self._failure(child, what)
        short = " or by the kernel, which does so when memory runs short" if status == -signal.SIGKILL else ""
        return f"{child.name} {what}, sent by somebody else{short}."

    def _failure(self, child: Child, what: str) -> str:
        tail = child.tail()
        where = f" to {child.log}" if self._logs_stay else ""
        shown = f"What it wrote last{where}:\n{tail}" if tail.strip() else f"It wrote nothing{where}."
        return f"{child.name} {what}. {shown}"

    async def _spawn(self, name: str, command: Sequence[str], announces: bool) -> Child:
        log = self._logs / f"{name.replace(' ', '-')}.log"
        log.write_bytes(b"")
        tethered = [sys.executable, "-I", "-S", tether.__file__]
        lifeline = -1
        output = None
        with contextlib.ExitStack() as child_side:  # what only the child needs
            sink = child_side.enter_context(log.open("ab"))
            stdout = sink.fileno()
            passed: list[int] = []
            if sys.platform == "linux":
                tethered += ["exec", str(os.getpid())]
            else:
                watched, lifeline = os.pipe()
                child_side.callback(os.close, watched)
                passed.append(watched)
                tethered += ["watch", str(watched)]
            if announces:
                # Not asyncio's PIPE: with that, waiting for the child waits for everyone who inherited the pipe.
                read_end, stdout = os.pipe()
                child_side.callback(os.close, stdout)
                output = await _reader(read_end)
            process = await asyncio.create_subprocess_exec(
                *tethered,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout,
                stderr=sink,
                pass_fds=passed,
                start_new_session=True,
            )
        return Child(name, log, process, output, lifeline)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    """A reader that owns the descriptor. Longer lines than 64 KiB are an error."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    return reader


def run(main: Callable[[Processes], Coroutine[Any, Any, None]], logs: Path, *, logs_stay: bool = False) -> None:
    """Run `main` with children to start; all of them have ended when this returns. For `logs` see Processes.

    The first SIGINT, SIGTERM or SIGHUP cancels `main` and stops the children in order, the next one kills them. Raises
    what `main` raises, and KeyboardInterrupt if it was cancelled by a signal.
    """
    interrupted = asyncio.run(_run(main, Processes(logs, logs_stay=logs_stay)))
    if interrupted:
        raise KeyboardInterrupt


async def _run(main: Callable[[Processes], Coroutine[Any, Any, None]], processes: Processes) -> bool:
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(main(processes))
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            work.cancel()
        else:
            processes.kill()

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, on_signal)
    try:
        await work
    except asyncio.CancelledError:
        if not signals:
            raise
    finally:
        await processes.stop()
        for number in caught:
            loop.remove_signal_handler(number)
    return signals > 0


def describe_status(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return f"signal {signal.Signals(-status).name}"
        except ValueError:
            return f"signal {-status}"
    return f"exit code {status}"
