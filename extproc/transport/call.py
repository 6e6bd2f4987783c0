"""One gRPC call on an ngh2 connection: what its handler sees, and what the connection keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from extproc.transport.framing import Deframer, pack_prefix

if TYPE_CHECKING:
    from extproc.transport.service import CallHandler


class Ngh2Call:
    """Implements `service.Call`. Queues; the connection takes what is queued at its next flush."""

    __slots__ = (
        "_headers",
        "_on_queued",
        "aborted",
        "awaits_flush",
        "deframer",
        "details",
        "finished",
        "gone",
        "handler",
        "held_bytes",
        "http_status",
        "output",
        "peer_ended",
        "started",
        "status",
        "stream_id",
    )

    def __init__(
        self,
        stream_id: int,
        headers: Sequence[tuple[bytes, bytes]],
        limit_bytes: int,
        on_queued: Callable[[Ngh2Call], None],
    ) -> None:
        self.stream_id = stream_id
        self._headers = headers
        self._on_queued = on_queued
        self.deframer = Deframer(limit_bytes)
        self.handler: CallHandler | None = None  # none while it is being made, or where none could be
        self.output: list[bytes] = []  # prefixes and messages that ngh2 does not have yet
        self.held_bytes = 0  # of an incomplete message, as counted by the connection
        self.awaits_flush = False  # in the connection's list of calls with something to take
        self.started = False  # response headers were given to ngh2
        self.peer_ended = False  # the client sends no more
        self.finished = False  # nothing more may be sent: finish() was called, or the stream is gone
        self.aborted = False  # ends with a reset instead of a status
        self.gone = False  # the connection has forgotten the stream
        self.http_status = b""  # where the request is no gRPC call, in place of a gRPC status
        self.status = 0
        self.details = ""

    @property
    def metadata(self) -> list[tuple[bytes, bytes]]:
        """The request's headers, as received: values of `-bin` names are base64."""
        return list(self._headers)

    def send(self, message: bytes) -> None:
        """Queue one message."""
        if self.finished:
            return
        output = self.output
        output.append(pack_prefix(0, len(message)))
        output.append(message)
        if not self.awaits_flush:
            self.awaits_flush = True
            self._on_queued(self)

    def finish(self, status: int = 0, details: str = "") -> None:
        """End the call after what was queued."""
        if self.finished:
            return
        self.finished = True
        self.status = status
        self.details = details
        if not self.awaits_flush:
            self.awaits_flush = True
            self._on_queued(self)

    def reset(self) -> None:
        """End the call as a crash would, without a status; what is still queued may be lost. For simulated faults."""
        if not self.finished:
            self.aborted = True
            self.finish()

    def open(self) -> None:
        """Send the response headers now, before anything else. For simulated faults."""
        if not (self.finished or self.started or self.awaits_flush):
            self.awaits_flush = True
            self._on_queued(self)

    def send_half(self, message: bytes) -> None:
        """Queue the prefix and the first half of a message. For simulated faults: the call must be reset next."""
        self.send(message)
        if self.output:
            self.output[-1] = message[: len(message) // 2]

    def refuse(self, http_status: bytes) -> None:
        """Answer what is no gRPC call in plain HTTP."""
        self.http_status = http_status
        self.finish()
