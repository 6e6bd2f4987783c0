"""Tokenizers in child processes, as the serving process uses them.

A child ends when its standard input ends, so also when this process is killed. A child that dies is started again for
the next text; the text that it was busy with is tried once more, then its error is raised.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from extproc.token_ids import TokenIds
from extproc.tokens.child import ENCODE, FAILED, NAME, REFUSED, REPLY, REQUEST, Library
from extproc.tokens.inspection import Failure, Inspection
from extproc.tokens.inspection_wire import decode_inspection
from extproc.tokens.source import TokenizerError

__all__ = ["RefusedError", "RemoteEncoder", "run_inspection"]

_COMMAND = (sys.executable, "-P", "-m", "extproc.tokens.child")
_LOAD_TIMEOUT_S = 120.0
_ENCODE_TIMEOUT_S = 60.0  # about 60 MB of text
_ATTEMPTS = 2
_PIPE = asyncio.subprocess.PIPE


async def run_inspection(path: Path) -> Inspection:
    """Inspect a tokenizer.json in a child process of its own. Raises TokenizerError."""
    process = await _start("inspect", str(path))
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_LOAD_TIMEOUT_S):
            answer = await process.stdout.read()
            code = await process.wait()
    except TimeoutError:
        raise TokenizerError(f"inspecting {path} took longer than {_LOAD_TIMEOUT_S:.0f} s") from None
    finally:
        await _end(process)
    if code != 0 or not answer:
        raise TokenizerError(f"the process that inspects {path} ended with status {code}")
    result = await asyncio.to_thread(decode_inspection, answer)
    if isinstance(result, Failure):
        raise TokenizerError(result.message)
    return result


async def _start(*arguments: str) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(*_COMMAND, *arguments, stdin=_PIPE, stdout=_PIPE)
    except OSError as error:
        raise TokenizerError(f"cannot start a process for the tokenizer: {error}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


class RefusedError(Exception):
    """The library cannot encode this text; another one may."""


class RemoteEncoder:
    """Encodes texts of one tokenizer in a child, which starts with the first text. Belongs to one event loop."""

    def __init__(self, path: Path, digest: str, library: Library = Library.TOKENIZERS) -> None:
        """`digest` is the file's SHA-256: a file changed meanwhile would give ids of another vocabulary."""
        self._path = path
        self._digest = digest
        self._library = library
        self._child: _Child | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return None if self._child is None or self._child.gone else self._child.process.pid

    async def start(self) -> None:
        """Start the child now rather than with the first text. Raises TokenizerError."""
        await self._running()

    async def encode(self, text: bytes) -> bytes:
        """The ids of a UTF-8 text as uint32, little-endian, without special tokens added.

        Raises TokenizerError, RefusedError.
        """
        return await self._ask(ENCODE, text)

    async def names(self, ids: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary writes them; None for an unknown id. Raises TokenizerError."""
        answer = await self._ask(NAME, TokenIds.of(ids).packed())
        return msgspec.msgpack.decode(answer, type=list[str | None])

    async def _ask(self, what: int, data: bytes) -> bytes:
        for attempt in range(1, _ATTEMPTS + 1):
            child = await self._running()
            try:
                return await child.ask(what, data)
            except _ChildGoneError:
                if attempt == _ATTEMPTS or self._closed:
                    raise TokenizerError(
                        f"the process that encodes with {self._path} died twice on a text of {len(data)} bytes"
                    ) from None
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """End the child; what it still encodes fails."""
        self._closed = True
        async with self._starting:
            child, self._child = self._child, None
            if child is not None:
                await child.aclose()

    async def _running(self) -> _Child:
        child = self._child
        if child is not None and not child.gone:
            return child
        async with self._starting:
            if self._closed:
                raise TokenizerError("the tokenizer is closed")
            if self._child is not None:
                if not self._child.gone:
                    return self._child
                await self._child.aclose()
                self._child = None
            self._child = await _Child.start(self._path, self._digest, self._library)
            return self._child


class _ChildGoneError(Exception):
    pass


class _Child:
    """One life of the child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.gone = False
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self._reader: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, path: Path, digest: str, library: Library) -> _Child:
        process = await _start("serve", str(path), digest, library)
        child = cls(process)
        ready = child._waiting[0] = asyncio.get_running_loop().create_future()
        child._reader = asyncio.create_task(child._read())
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await ready
        except (TimeoutError, _ChildGoneError):
            await child.aclose()
            raise TokenizerError(f"the process that encodes with {path} did not start") from None
        except BaseException:
            await child.aclose()
            raise
        return child

    async def ask(self, what: int, data: bytes) -> bytes:
        if self.gone:
            raise _ChildGoneError
        self._last_id = request_id = self._last_id + 1
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        stdin = self.process.stdin
        assert stdin is not None
        try:
            async with asyncio.timeout(_ENCODE_TIMEOUT_S):
                try:
                    stdin.write(REQUEST.pack(request_id, what, len(data)))
                    stdin.write(data)
                    await stdin.drain()
                except (OSError, RuntimeError):
                    raise _ChildGoneError from None
                return await answer
        except TimeoutError:
            self._abandon()
            raise TokenizerError(f"encoding a text of {len(data)} bytes took longer than the limit") from None
        finally:
            del self._waiting[request_id]
            if answer.done() and not answer.cancelled():
                answer.exception()  # retrieved, also where the write already failed

    async def aclose(self) -> None:
        await _end(self.process)
        if self._reader is not None:
            await self._reader

    def _abandon(self) -> None:
        """Kill a child that hangs; the reader then fails all that waits."""
        if self.process.returncode is None:
            self.process.kill()

    async def _read(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        try:
            while True:
                request_id, status, length = REPLY.unpack(await stdout.readexactly(REPLY.size))
                payload = await stdout.readexactly(length)
                waiter = self._waiting.get(request_id)
                if waiter is None or waiter.done():
                    continue  # whoever asked has gone
                if status == REFUSED:
                    waiter.set_exception(RefusedError())
                elif status == FAILED:
                    waiter.set_exception(TokenizerError(f"the tokenizer failed: {payload.decode(errors='replace')}"))
                else:
                    waiter.set_result(payload)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.gone = True
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(_ChildGoneError())
            await self.process.wait()
