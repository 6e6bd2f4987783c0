"""Calls that the processor makes to engines itself, beside those that Envoy carries.

What a client asks for as one may be several calls: a list of prompts, a list of texts to embed. The calls go the same
way as others: each is admitted, gets its worker by the pool's policy, and is known to the breaker. grpcio brings the
connections, one per engine, to the codecs that Envoy's answers go through, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import grpc
import grpc.aio
from msgspec import Struct

from extproc.engines.base import EngineRequest, ProtocolError
from extproc.engines.control import open_channel
from extproc.gateway.answer import FAULTS
from extproc.ir import ErrorInfo, ErrorKind, RequestError
from extproc.routing.facts import RouteFacts
from extproc.routing.pool import Pool
from extproc.routing.reservation import Reservation
from extproc.routing.worker import Worker

_FRAME_HEAD_BYTES = 5
_MOST_TRIES = 3
_MOST_AT_ONCE = 32
"""Calls of one request: so many keep an engine's batch busy, and leave room for others."""

_UNREADABLE = ErrorInfo(kind=ErrorKind.BAD_GATEWAY, message="The engine sent an answer that cannot be read.")


class Receiver(Protocol):
    """What an answer's bytes go into."""

    def receive(self, frame: bytes) -> bool:
        """One gRPC frame. True where nothing more is wanted. Raises ProtocolError."""
        ...

    def end(self, trailers: Mapping[str, str]) -> ErrorInfo | None:
        """None if the answer ended well, else what went wrong."""
        ...


_R = TypeVar("_R", bound=Receiver)


class EngineCall(Struct, frozen=True):
    """One call: what policies see of it, and its bytes once the worker is known."""

    facts: RouteFacts
    request: Callable[[int | None], EngineRequest]  # given the worker's data-parallel rank


class EngineCalls:
    """The connections. An `Observer` of every pool whose engines are called."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: of one call."""
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def all(self, pool: Pool, calls: Sequence[EngineCall], receiver: Callable[[int], _R]) -> list[_R]:
        """All calls of one request, some at a time, each with a receiver that is made by the call's number.

        Raises RequestError with the first call that fails for good; the others are ended then, as they are when the
        caller is cancelled.
        """
        received: list[_R | None] = [None] * len(calls)
        numbers = iter(range(len(calls)))

        async def work() -> None:
            for number in numbers:
                received[number] = await self._one(pool, calls[number], lambda at=number: receiver(at))  # type: ignore[misc]

        tasks = [asyncio.ensure_future(work()) for _ in range(min(_MOST_AT_ONCE, len(calls)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [each for each in received if each is not None]

    async def _one(self, pool: Pool, call: EngineCall, receiver: Callable[[], _R]) -> _R:
        """Another worker is tried where one cannot be reached."""
        for tries_left in reversed(range(_MOST_TRIES)):
            reservation = await _reserved(pool, call.facts)
            try:
                worker = reservation.worker
                received = receiver()
                error = await self._send(worker.address, call.request(worker.rank), received, reservation)
                if error is None:
                    reservation.succeeded()
                    return received
                if error.kind in FAULTS:
                    reservation.failed()
                else:
                    reservation.succeeded()
                if error.kind is not ErrorKind.UNAVAILABLE or not tries_left:
                    raise RequestError(error)
            finally:
                reservation.settle()
        raise AssertionError("the last try neither ends nor fails")

    async def _send(
        self, address: str, request: EngineRequest, receiver: Receiver, reservation: Reservation
    ) -> ErrorInfo | None:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address)
        call: grpc.aio.UnaryStreamCall[bytes, bytes] = channel.unary_stream(request.path, None, None)(
            request.body[_FRAME_HEAD_BYTES:], timeout=self._timeout_s
        )
        try:
            async for message in call:
                reservation.first_token()
                if receiver.receive(b"\0" + len(message).to_bytes(4, "big") + message):
                    call.cancel()
                    return None
        except ProtocolError:
            call.cancel()
            return _UNREADABLE
        except grpc.aio.AioRpcError as error:
            number: int = error.code().value[0]
            return receiver.end({"grpc-status": str(number), "grpc-message": error.details() or ""})
        return receiver.end({"grpc-status": "0"})

    def joined(self, worker: Worker) -> None:
        """The connection is opened by the first call."""

    def restarted(self, worker: Worker) -> None:
        """grpcio connects again by itself."""

    def left(self, worker: Worker) -> None:
        """Close its connection behind the calls that run; other ranks of the same engine open another."""
        channel = self._channels.pop(worker.address, None)
        if channel is not None:
            task = asyncio.ensure_future(channel.close(self._timeout_s))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all connections, whatever runs on them."""
        channels = list(self._channels.values())
        self._channels = {}
        closing = list(self._closing)
        for task in closing:
            task.cancel()
        await asyncio.gather(*(channel.close(None) for channel in channels), *closing, return_exceptions=True)


async def _reserved(pool: Pool, facts: RouteFacts) -> Reservation:
    """Raises RequestError."""
    admission = pool.admission
    if admission is None:
        return pool.reserve(facts)
    admitted: Reservation | Awaitable[Reservation] = admission.admit(
        facts.prompt_tokens, facts.tenant, facts.priority, lambda: pool.reserve(facts)
    )
    return admitted if isinstance(admitted, Reservation) else await admitted
