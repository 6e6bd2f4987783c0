"""One of the supervisor's processes: started, listened to, and started again when it ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

import msgspec

from extproc.cli import tether
from extproc.cli.processes import describe_status
from extproc.discovery.roster import Roster
from extproc.observe.exposition import Family
from extproc.supervisor import UNFORKED_GRPC
from extproc.supervisor.channel import Ask, Channel, Failed, Ready, Start, Started, Told, ToSupervisor, Workers

_log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 10.0
_STEADY_S = 30.0
"""A process that served for so long has started well: the next delay is the shortest again."""

_ANSWER_S = 2.0
_END_S = 5.0
"""How long a process may take to end after it has closed its channel."""


class Member:
    """A process with a number, whatever its present pid."""

    def __init__(self, start: Start, *, ended: Callable[[Sequence[Family]], None]) -> None:
        """`ended` is called with the last metrics of a process that is no more."""
        self._start = start
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel[ToSupervisor] | None = None
        self._last: Sequence[Family] = ()
        self._asked = 0
        self._telling: list[Family] = []
        self._answer: asyncio.Future[None] | None = None
        self._serving_since_s: float | None = None
        self._stopping = False
        self.restarts = 0
        self.ready = False
        self.detail: Mapping[str, object] = {}
        self.first_start: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        """Done when the first process serves (None), or cannot (why)."""

    @property
    def number(self) -> int:
        """Which of the processes, from 0."""
        return self._start.process

    @property
    def pid(self) -> int | None:
        """Of the present process; None between two of them."""
        return self._process.pid if self._process is not None else None

    @property
    def state(self) -> str:
        """In a word, for people and metrics."""
        if self._process is None:
            return "down"
        if self._serving_since_s is None:
            return "starting"
        return "ready" if self.ready else "not_ready"

    async def run(self) -> None:
        """Keep a process running until `stop` was called."""
        delay_s = _FIRST_DELAY_S
        while True:
            served_s, why = await self._live()
            if not self.first_start.done():
                self.first_start.set_result(why)
                return
            if self._stopping:
                return
            delay_s = _FIRST_DELAY_S if served_s > _STEADY_S else min(2 * delay_s, _LONGEST_DELAY_S)
            _log.error("process %d %s; it is started again in %g s", self.number, why, delay_s)
            await asyncio.sleep(delay_s)
            self.restarts += 1

    def stop(self) -> None:
        """Ask the process to end in order; the second time, at once."""
        self._stopping = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process, and whatever it started, now."""
        self._stopping = True
        self._signal(signal.SIGKILL)

    def workers(self, roster: Roster) -> None:
        """The workers are these from now on, for this process and those that come after it."""
        self._start = msgspec.structs.replace(self._start, roster=roster)
        if self._channel is not None:
            self._channel.send(Workers(roster))

    async def families(self) -> Sequence[Family]:
        """Its metrics; of a process that does not answer, or of none, those that were told last and still hold."""
        if self._channel is None or self._serving_since_s is None:
            return ()
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            self._asked += 1
            self._telling = []
            self._channel.send(Ask(self._asked))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._answer), _ANSWER_S)
        return self._last

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if number is signal.SIGKILL:
                    os.killpg(process.pid, number)  # with its helpers: it leads a group of its own
                else:
                    os.kill(process.pid, number)

    async def _live(self) -> tuple[float, str]:
        """One process from start to end: for how many seconds it served, and how it ended."""
        ours, its = socket.socketpair()
        with its:
            tethered = [sys.executable, "-I", "-S", tether.__file__, "exec", str(os.getpid())]
            command = [sys.executable, "-P", "-m", "extproc.supervisor.child", str(its.fileno())]
            self._process = process = await asyncio.create_subprocess_exec(
                *tethered,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **UNFORKED_GRPC},
                pass_fds=[its.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal reaches only us
            )
        if self._stopping:
            self._signal(signal.SIGTERM)
        channel: Channel[ToSupervisor] = await Channel.open(ours, ToSupervisor)
        self._channel = channel
        channel.send(self._start)
        failure = None
        try:
            while (message := await channel.receive()) is not None:
                if isinstance(message, Failed):
                    failure = message.reason
                else:
                    self._hear(message)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_S)
        except msgspec.DecodeError as error:
            failure = f"sent what is no message ({error}) and was ended"
        finally:
            if process.returncode is None:
                self._signal(signal.SIGKILL)
            status = await process.wait()
            channel.close()
            served_s = monotonic() - self._serving_since_s if self._serving_since_s is not None else 0.0
            self._forget()
        return served_s, failure or f"ended with {describe_status(status)}"

    def _hear(self, message: Started | Ready | Told) -> None:
        if isinstance(message, Told):
            if message.number != self._asked or self._answer is None:
                return
            if message.family is not None:
                self._telling.append(message.family)
                return
            self._last = self._telling
            self._answer.set_result(None)
            self._answer = None
        elif isinstance(message, Ready):
            self.ready = message.ready
            self.detail = message.detail
        else:
            self._serving_since_s = monotonic()
            _log.info("process %d serves, pid %s", self.number, self.pid)
            if not self.first_start.done():
                self.first_start.set_result(None)

    def _forget(self) -> None:
        """Of the process that ended."""
        self._process = None
        self._channel = None
        self._serving_since_s = None
        self.ready = False
        self.detail = {}
        last, self._last = self._last, ()
        self._ended(last)
        if self._answer is not None:
            self._answer.set_result(None)
            self._answer = None
