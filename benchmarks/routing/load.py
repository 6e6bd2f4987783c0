"""The client: open loop, by the trace's clock. What is late or fails is counted, never left out.

A request is sent when it is due, whatever became of those before it; its time to first token counts from when it was
due, so a client or gateway that falls behind shows it. Of an answer only the first content is looked for while it
comes, then its end; usage is read from the last bytes. HTTP/1.1 with keep-alive, a connection for each request in
flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from benchmarks.routing.prompts import Bodies

MAX_IN_FLIGHT = 4_096
_IDLE_S = 4.0  # connections idle for longer are not used again: a server may be about to close them
_TAIL_BYTES = 2_048
_CONTENT = re.compile(rb'"content": ?"[^"]')
_USAGE = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens)": ?([0-9]+)')
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_DONE = b"data: [DONE]"


@dataclass(slots=True)
class Outcome:
    """What became of one request. Seconds are wall time."""

    due_s: float  # after the start
    late_s: float = 0.0  # sent so long after it was due
    first_s: float | None = None  # first content, after it was due
    end_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    status: str = "unfinished"  # ok, or what went wrong

    @property
    def ok(self) -> bool:
        """Answered whole."""
        return self.status == "ok"


@dataclass(slots=True)
class LoadResult:
    """A run."""

    outcomes: list[Outcome]
    elapsed_s: float = 0.0  # from the first request's due time to the last answer
    cpu_s: float = 0.0  # of the client's thread
    most_in_flight: int = 0
    first_mistake: str = field(default="")  # what the first request that went wrong was answered


class _Run:
    def __init__(self, port: int, result: LoadResult, output_tokens: Sequence[int]) -> None:
        self.port = port
        self.result = result
        self.output_tokens = output_tokens
        self.started = 0.0
        self.idle: list[_Connection] = []
        self.open: set[_Connection] = set()
        self.in_flight = 0
        self.sent_all = False
        self.done = asyncio.Event()
        self.connecting: set[asyncio.Task[None]] = set()

    def send(self, number: int, wire: bytes) -> None:
        """On a connection that is idle, or on a new one."""
        if self.in_flight >= MAX_IN_FLIGHT:
            self.result.outcomes[number].status = "not sent: too many in flight"
            return
        self.in_flight += 1
        self.result.most_in_flight = max(self.result.most_in_flight, self.in_flight)
        oldest = time.perf_counter() - _IDLE_S
        while self.idle:
            connection = self.idle.pop()
            if connection.idle_since >= oldest:
                connection.send(number, wire)
                return
            connection.close()
        task = asyncio.get_running_loop().create_task(self._connect(number, wire))
        self.connecting.add(task)
        task.add_done_callback(self.connecting.discard)

    async def _connect(self, number: int, wire: bytes) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), "127.0.0.1", self.port
            )
        except OSError as error:
            self.ended(number, f"no connection: {error.strerror}")
            return
        connection.send(number, wire)

    def ended(self, number: int, status: str, answer: bytes = b"") -> None:
        """One request less in flight."""
        outcome = self.result.outcomes[number]
        outcome.status = status
        outcome.end_s = time.perf_counter() - self.started - outcome.due_s
        if not outcome.ok and not self.result.first_mistake:
            self.result.first_mistake = f"{status}: {answer[:600]!r}"
        self.in_flight -= 1
        if self.sent_all and not self.in_flight:
            self.done.set()


class _Connection(asyncio.Protocol):
    def __init__(self, run: _Run) -> None:
        self._run = run
        self._number = -1
        self._start = b""  # of the answer, up to its first content
        self._tail = b""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._run.open.add(self)

    def send(self, number: int, wire: bytes) -> None:
        """The next request."""
        run = self._run
        outcome = run.result.outcomes[number]
        outcome.late_s = time.perf_counter() - run.started - outcome.due_s
        self._number = number
        self._start = self._tail = b""
        self._transport.write(wire)

    def close(self) -> None:
        """No more requests, and no more of the answer."""
        self._number = -1
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        number = self._number
        if number < 0:
            return
        outcome = self._run.result.outcomes[number]
        if outcome.first_s is None:
            now = time.perf_counter()
            start = self._start + data
            self._start = start
            if not start.startswith(b"HTTP/1.1 200"[: len(start)]):
                if b"\r\n" in start:
                    self._fail(f"HTTP {start[9:12].decode(errors='replace')}")
                return
            if not _CONTENT.search(start):
                if start.endswith(_LAST_CHUNK):
                    self._fail("no content")
                return
            outcome.first_s = now - self._run.started - outcome.due_s
        self._tail = tail = (self._tail + data)[-_TAIL_BYTES:]
        if tail.endswith(_LAST_CHUNK):
            self._complete(outcome, tail)

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.open.discard(self)
        if self._number >= 0:
            self._fail("connection closed")
        elif self in self._run.idle:
            self._run.idle.remove(self)

    def _complete(self, outcome: Outcome, tail: bytes) -> None:
        run = self._run
        number = self._number
        usage = dict(_USAGE.findall(tail))
        completion = int(usage.get(b"completion_tokens", -1))
        if _DONE not in tail or completion < 0:
            self._fail("broken off in the stream")
            return
        if completion != run.output_tokens[number]:
            self._fail("wrong number of tokens")
            return
        outcome.prompt_tokens = int(usage.get(b"prompt_tokens", 0))
        outcome.cached_tokens = int(usage.get(b"cached_tokens", 0))
        self._number = -1
        self.idle_since = time.perf_counter()
        run.idle.append(self)
        run.ended(number, "ok")

    def _fail(self, status: str) -> None:
        number = self._number
        self._number = -1
        self._transport.abort()
        self._run.ended(number, status, self._tail or self._start)


async def load(
    port: int, bodies: Bodies | Sequence[bytes], due_s: Sequence[float], output_tokens: Sequence[int], drain_s: float
) -> LoadResult:
    """Send each request when it is due, in seconds after the start, and wait `drain_s` for the last ones."""
    result = LoadResult([Outcome(at) for at in due_s])
    run = _Run(port, result, output_tokens)
    cpu = time.thread_time()
    run.started = started = time.perf_counter()
    for number, at in enumerate(due_s):
        delay = started + at - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        run.send(number, bodies[number])
    run.sent_all = True
    if run.in_flight:
        with contextlib.suppress(TimeoutError):  # outcomes say who is not done
            await asyncio.wait_for(run.done.wait(), drain_s)
    result.elapsed_s = time.perf_counter() - started
    result.cpu_s = time.thread_time() - cpu
    for connection in list(run.open):
        connection.close()
    return result
