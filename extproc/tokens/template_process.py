"""Chat templates in child processes, as the serving process uses them: bounded in time and output.

A child ends when its standard input ends; one that is busy is ended by its own timer. What kills a child is that
rendering's error, and the next one gets a new child.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from extproc.tokens.conversation import TemplateError
from extproc.tokens.rank_files import TEKKEN
from extproc.tokens.source import TokenizerError
from extproc.tokens.template import Engine
from extproc.tokens.template_child import LENGTH, NO_TEMPLATE, NOT_UNICODE, OK, REPLY
from extproc.tokens.template_inspection import Profile
from extproc.tokens.tokenizer import InvalidTextError

__all__ = ["RenderLimits", "TemplateBusyError", "TemplateProcesses"]

_COMMAND = (sys.executable, "-P", "-m", "extproc.tokens.template_child")
_PROCESSES = 2  # at once; each about 30 MB
_ATTEMPTS = 2
_WAITING = 256
_PIPE = asyncio.subprocess.PIPE
# A child out of memory fails in one of these ways, where it does not get to tell.
_OUT_OF_MEMORY = frozenset({-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS})


class RenderLimits(Struct, frozen=True):
    """What one rendering may take."""

    cpu_s: float = 5.0
    wall_s: float = 30.0  # only a machine that is overloaded needs longer than the CPU time
    max_characters: int = 64 << 20  # twice the largest body that is accepted by default


class TemplateBusyError(Exception):
    """Too many renderings wait already."""


class _GoneError(Exception):
    pass


class TemplateProcesses:
    """The children of one model's templates, started when they are needed. Belongs to one event loop."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, Any],
        limits: RenderLimits,
        tekken: Path | None = None,
    ) -> None:
        """`tekken`: with Mistral's encoder of this file rather than templates."""
        self._limits = limits
        self._setup = _framed(
            {
                "templates": templates,
                "special_tokens": special_tokens,
                "max_characters": limits.max_characters,
                "cpu_s": limits.cpu_s,
                "tekken": None if tekken is None else str(tekken),
            }
        )
        self._idle: list[asyncio.subprocess.Process] = []
        self._free = asyncio.Semaphore(_PROCESSES)
        self._waiting = 0
        self._runs: set[asyncio.Task[tuple[int, bytes]]] = set()
        self._closed = False

    async def inspect(self, name: str) -> Profile:
        """What is to be known of a template. A Profile that promises nothing where it was ended by its limits.

        Raises TokenizerError where the text is not a template.
        """
        try:
            text = await self._ask({"inspect": name})
        except TemplateError as error:
            return Profile(difference=f"its inspection was ended: {error}")
        return msgspec.json.decode(text, type=Profile)

    async def render(self, name: str, engine: Engine, variables: Mapping[str, Any]) -> str:
        """The text. jinja2 decides on what minijinja refuses.

        Raises TemplateError, also where a limit is exceeded; InvalidTextError, TemplateBusyError, TokenizerError.
        """
        return (await self._ask({"inspect": None, "template": name, "engine": engine, "variables": variables})).decode()

    async def rest(self) -> None:
        """End the children that have nothing to do: they are not expected to be needed often."""
        idle, self._idle = self._idle, []
        for process in idle:
            await _end(process)

    async def start_encoder(self) -> None:
        """Load Mistral's encoder. Raises TokenizerError where that cannot be."""
        await self._ask({"inspect": TEKKEN})

    async def encode(self, variables: Mapping[str, Any]) -> bytes:
        """The ids of Mistral's encoder as uint32, little-endian. Raises as `render` does."""
        return await self._ask({"inspect": None, "variables": variables})

    async def aclose(self) -> None:
        """End the children; what they still render fails."""
        self._closed = True
        runs = list(self._runs)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await self.rest()

    async def _ask(self, request: dict[str, Any]) -> bytes:
        if self._waiting >= _WAITING:
            raise TemplateBusyError
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        if self._closed:
            self._free.release()
            raise TokenizerError("the chat template is closed")
        # A task of its own: whoever asks may go away, and then the child is still good for the next one.
        run = asyncio.create_task(self._run(_framed(request)))
        self._runs.add(run)
        run.add_done_callback(self._ended)
        status, text = await asyncio.shield(run)
        if status == OK:
            return text
        if status == NOT_UNICODE:
            raise InvalidTextError
        message = text.decode(errors="replace")
        raise TokenizerError(message) if status == NO_TEMPLATE else TemplateError(message)

    def _ended(self, run: asyncio.Task[tuple[int, bytes]]) -> None:
        self._free.release()
        self._runs.discard(run)
        if not run.cancelled():
            run.exception()  # retrieved, also where nobody waits any more

    async def _run(self, request: bytes) -> tuple[int, bytes]:
        for _ in range(_ATTEMPTS):
            process = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(self._limits.wall_s):
                    answer = await _exchange(process, request)
            except TimeoutError:
                await _end(process)
                raise TemplateError(
                    f"the chat template took over {self._limits.wall_s:g} s for this conversation"
                ) from None
            except _GoneError:
                code = await _end(process)
                if code == -signal.SIGPROF:
                    raise TemplateError(
                        f"the chat template took over {self._limits.cpu_s:g} s of CPU for this conversation"
                    ) from None
                if code in _OUT_OF_MEMORY:
                    raise TemplateError("the chat template needs too much memory for this conversation") from None
            except BaseException:
                await _end(process)
                raise
            else:
                self._idle.append(process)
                return answer
        raise TokenizerError(f"the process that renders the chat template died with status {code}")

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=_PIPE, stdout=_PIPE)
        except OSError as error:
            raise TokenizerError(f"cannot start a process for the chat template: {error}") from error
        assert process.stdin is not None
        with suppress(OSError, RuntimeError):  # the first exchange finds out
            process.stdin.write(self._setup)
        return process


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> tuple[int, bytes]:
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    try:
        stdin.write(request)
        await stdin.drain()
        status, length = REPLY.unpack(await stdout.readexactly(REPLY.size))
        return status, await stdout.readexactly(length)
    except (asyncio.IncompleteReadError, OSError, RuntimeError):
        raise _GoneError from None


async def _end(process: asyncio.subprocess.Process) -> int:
    """End it where it has not ended by itself; the status that it ended with."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1 if process.returncode is None else None):
            return await process.wait()
    with suppress(ProcessLookupError):
        process.kill()
    return await process.wait()


def _framed(value: Any) -> bytes:
    data = json.dumps(value).encode()
    return LENGTH.pack(len(data)) + data
