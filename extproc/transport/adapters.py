"""Plain functions as handlers of calls with one request message."""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from extproc.transport.service import Call, MethodHandler
from extproc.transport.status import RpcError, Status

_log = logging.getLogger(__name__)

UnaryFunction = Callable[[bytes], bytes | Awaitable[bytes]]
StreamingFunction = Callable[[bytes], AsyncIterator[bytes]]


def unary(function: UnaryFunction) -> MethodHandler:
    """One request, one answer. `function` may raise RpcError; what must be waited for, it returns as an awaitable."""
    return lambda call: _Unary(call, function)


def server_streaming(function: StreamingFunction) -> MethodHandler:
    """One request, many answers. `function` may raise RpcError, and is cancelled when the client is gone."""
    return lambda call: _ServerStreaming(call, function)


class _OneRequest(ABC):
    """Waits for one message and the client's end, then answers, in a task where that takes awaiting."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._request: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def message(self, data: bytes) -> None:
        if self._request is None:
            self._request = data
        else:
            self._call.finish(Status.INTERNAL, "this method takes one request message, and a second one came")

    def half_close(self) -> None:
        if self._request is None:
            self._call.finish(Status.INTERNAL, "this method takes one request message, and none came")
            return
        try:
            self._answer(self._request)
        except RpcError as error:
            self._call.finish(error.status, error.details)

    def closed(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @abstractmethod
    def _answer(self, request: bytes) -> None: ...

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RpcError as error:
            self._call.finish(error.status, error.details)
        except Exception:
            _log.exception("handler failed")
            self._call.finish(Status.INTERNAL, "internal error")
        else:
            self._call.finish()


class _Unary(_OneRequest):
    def __init__(self, call: Call, function: UnaryFunction) -> None:
        super().__init__(call)
        self._function = function

    def _answer(self, request: bytes) -> None:
        answer = self._function(request)
        if inspect.isawaitable(answer):
            self._run(self._send_when_ready(answer))
        else:
            self._call.send(answer)
            self._call.finish()

    async def _send_when_ready(self, answer: Awaitable[bytes]) -> None:
        self._call.send(await answer)


class _ServerStreaming(_OneRequest):
    def __init__(self, call: Call, function: StreamingFunction) -> None:
        super().__init__(call)
        self._function = function

    def _answer(self, request: bytes) -> None:
        self._run(self._send_all(self._function(request)))

    async def _send_all(self, answers: AsyncIterator[bytes]) -> None:
        async for answer in answers:
            self._call.send(answer)
