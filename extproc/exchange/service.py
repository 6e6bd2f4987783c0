"""Binds exchanges to the transport: one gRPC call is one exchange, with its deadline."""

from __future__ import annotations

import asyncio
import logging

from google.protobuf.message import DecodeError

from extproc.exchange.application import Application, Outcome
from extproc.exchange.exchange import Exchange, HeldBodies, WrongModeError
from extproc.transport.service import Call, CallHandler, Service

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

_log = logging.getLogger(__name__)

_INTERNAL = 13
_INVALID_ARGUMENT = 3
_FAILED_PRECONDITION = 9

_ASKED_PER_TURN = 256  # 0.3 us each, and 20 us where something is sent

_MOST_OFTEN_S = 0.02
"""Deadlines are looked at no more often than this: under load many of them come close together."""


class ExtProcService:
    """The gRPC service `envoy.service.ext_proc.v3.ExternalProcessor`.

    All exchanges have the same deadline, so the open ones stand in the order of their arrival, and one timer for all of
    them looks at the first: no timer per request.
    """

    def __init__(
        self, application: Application, *, deadline_s: float, held_bodies_bytes: int, keep_alive_s: float = 0.0
    ) -> None:
        """`keep_alive_s`: how often answers are asked whether their clients need a sign of life; 0 for never."""
        self._application = application
        self._held = HeldBodies(held_bodies_bytes)
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._open_calls: dict[ExtProcCall, float] = {}  # to their deadlines, oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive_s = keep_alive_s
        self._keep_alive_timer: asyncio.Handle | None = None
        self._log_mode_error = True

    @property
    def open_calls(self) -> int:
        """Exchanges under way."""
        return len(self._open_calls)

    @property
    def held_bytes(self) -> int:
        """Request bodies that wait for their end, over all exchanges."""
        return self._held.held_bytes

    def service(self) -> Service:
        """For the transport."""
        return {METHOD: self._open}

    def _open(self, call: Call) -> CallHandler:
        handler = ExtProcCall(call, Exchange(self._application, self._held), self)
        self._open_calls[handler] = self._loop.time() + self._deadline_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._deadline_s, self._tick)
        if self._keep_alive_timer is None and self._keep_alive_s:
            self._keep_alive_timer = self._loop.call_later(self._keep_alive_s, self._keep_alive, [])
        return handler

    def _tick(self) -> None:
        now = self._loop.time()
        due = []
        for call, deadline in self._open_calls.items():
            if deadline > now:
                break
            due.append(call)
        for call in due:
            # It waits at the end of the queue for Envoy to end the stream.
            del self._open_calls[call]
            self._open_calls[call] = now + self._deadline_s
            call.expire()
        first = next(iter(self._open_calls.values()), None)
        self._timer = None if first is None else self._loop.call_at(max(first, now + _MOST_OFTEN_S), self._tick)

    def _keep_alive(self, rest: list[ExtProcCall]) -> None:
        """One round: all open exchanges, some in each turn of the event loop; nothing happens without any."""
        calls = rest or list(self._open_calls)
        for call in calls[:_ASKED_PER_TURN]:
            call.keep_alive()
        rest = calls[_ASKED_PER_TURN:]
        if rest:
            self._keep_alive_timer = self._loop.call_soon(self._keep_alive, rest)
        elif self._open_calls:
            self._keep_alive_timer = self._loop.call_later(self._keep_alive_s, self._keep_alive, [])
        else:
            self._keep_alive_timer = None

    def forget(self, call: ExtProcCall) -> None:
        """The call is over."""
        self._open_calls.pop(call, None)

    def wrong_mode(self, error: WrongModeError) -> None:
        """Says once what the operator must change; every request fails until then."""
        if self._log_mode_error:
            self._log_mode_error = False
            _log.error("%s", error)

    def close(self) -> None:
        """Stop the timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
            self._keep_alive_timer = None


class ExtProcCall:
    """One stream of Envoy's."""

    __slots__ = ("_call", "_service", "_task", "exchange")

    def __init__(self, call: Call, exchange: Exchange, service: ExtProcService) -> None:
        self._call = call
        self._service = service
        self._task: asyncio.Future[Outcome] | None = None
        self.exchange = exchange

    def message(self, data: bytes) -> None:
        """One ext_proc message."""
        exchange = self.exchange
        try:
            replies = exchange.receive(data)
        except DecodeError:
            self._call.finish(_INVALID_ARGUMENT, "not an ext_proc message")
            return
        except WrongModeError as error:
            self._service.wrong_mode(error)
            self._call.finish(_FAILED_PRECONDITION, str(error))
            return
        send = self._call.send
        for reply in replies:
            send(reply)
        if exchange.pending is not None and self._task is None:
            # The task is the awaited thing itself: cancelled before it begins, it is still told.
            self._task = asyncio.ensure_future(exchange.pending)
            self._task.add_done_callback(self._decided)

    def _decided(self, task: asyncio.Future[Outcome]) -> None:
        if task.cancelled():
            return
        exchange = self.exchange
        try:
            replies = exchange.resume(task.result())
        except Exception:
            _log.exception("internal error while deciding on a request")
            replies = exchange.fail()
        for reply in replies:
            self._call.send(reply)

    def expire(self) -> None:
        """The deadline has passed. Nothing happens to an exchange that is over."""
        try:
            replies = self.exchange.expire()
        except Exception:
            _log.exception("internal error at a deadline")
            self._call.finish(_INTERNAL, "internal error")
            return
        for reply in replies:
            self._call.send(reply)

    def keep_alive(self) -> None:
        """It is asked whether its client needs a sign of life."""
        try:
            replies = self.exchange.keep_alive()
        except Exception:
            _log.exception("internal error while keeping an answer alive")
            replies = self.exchange.fail()
        for reply in replies:
            self._call.send(reply)

    def half_close(self) -> None:
        """Envoy sends no more: nothing more is to be processed."""
        self._call.finish()

    def closed(self) -> None:
        """The stream is over, in whatever way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._service.forget(self)
        self.exchange.close()
