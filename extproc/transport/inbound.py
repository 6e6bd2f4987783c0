"""The open calls of one connection, and what arrives for them: requests, data and ends, given to their handlers.

Nothing that a handler does can reach the connection: whatever it raises is logged and ends its own call. Every handler
that was made hears `closed()` exactly once, in `forget`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from extproc.transport.call import Ngh2Call
from extproc.transport.framing import CompressedMessageError, Deframer, FramingError, MessageTooLargeError
from extproc.transport.limits import TransportLimits
from extproc.transport.service import Service
from extproc.transport.status import Status

_log = logging.getLogger(__name__)

_CONTENT_TYPE = b"application/grpc"
_CONTENT_TYPE_CONTINUES = (b"application/grpc+", b"application/grpc;")


class OpenCalls:
    """Calls by stream."""

    def __init__(self, service: Service, limits: TransportLimits, on_queued: Callable[[Ngh2Call], None]) -> None:
        """`on_queued` is called when a call has something to send."""
        self._service = service
        self._limits = limits
        self._on_queued = on_queued
        self._held_bytes = 0  # of incomplete messages
        self.by_stream: dict[int, Ngh2Call] = {}
        self.opened = 0  # calls so far

    def on_request(self, stream_id: int, headers: Sequence[tuple[bytes, bytes]], *, end_stream: bool) -> None:
        """A new call. What is no gRPC call is refused as PROTOCOL-HTTP2.md says."""
        method = path = content_type = b""
        for name, value in headers:
            if name == b":path":
                path = value
            elif name == b":method":
                method = value
            elif name == b"content-type":
                content_type = value
        call = Ngh2Call(stream_id, headers, self._limits.max_message_bytes, self._on_queued)
        call.peer_ended = end_stream
        self.by_stream[stream_id] = call
        self.opened += 1
        if method != b"POST":
            call.refuse(b"405")
            return
        if content_type != _CONTENT_TYPE and not content_type.startswith(_CONTENT_TYPE_CONTINUES):
            call.refuse(b"415")
            return
        open_call = self._service.get(path.decode("latin-1"))
        if open_call is None:
            call.finish(Status.UNIMPLEMENTED, f"unknown method {path.decode('latin-1')}")
            return
        try:
            call.handler = open_call(call)
            if end_stream and not call.finished:
                call.handler.half_close()
        except Exception:
            self._fail(call)

    def on_data(self, call: Ngh2Call, data: bytes) -> None:
        """Bytes of a call, cut anywhere."""
        handler = call.handler
        if call.finished or handler is None:
            return  # the client has not heard yet that the call is over
        deframer = call.deframer
        only = deframer.only(data)
        if only is not None:
            try:
                handler.message(only)
            except Exception:
                self._fail(call)
            return
        failure: FramingError | None = None
        try:
            messages = deframer.feed(data)
        except FramingError as error:
            failure = error
            messages = error.messages
        try:
            for message in messages:
                handler.message(message)
                if call.finished:
                    return
        except Exception:
            self._fail(call)
            return
        if failure is not None:
            self._let_go(call)
            call.finish(_framing_status(failure), str(failure))
        elif deframer.held_bytes != call.held_bytes:
            self._held_bytes += deframer.held_bytes - call.held_bytes
            call.held_bytes = deframer.held_bytes
            if self._held_bytes > self._limits.connection_buffer_bytes:
                self._let_go(call)
                call.finish(Status.RESOURCE_EXHAUSTED, "too many bytes of unfinished messages on this connection")

    def on_end(self, call: Ngh2Call) -> None:
        """The client sends no more."""
        call.peer_ended = True
        if call.finished or call.handler is None:
            return
        if call.deframer.missing_bytes:
            call.finish(Status.INTERNAL, "the request ended inside a message")
            return
        try:
            call.handler.half_close()
        except Exception:
            self._fail(call)

    def forget(self, stream_id: int) -> None:
        """The stream is over: the handler hears it now, and nothing of the call is left."""
        call = self.by_stream.pop(stream_id, None)
        if call is None:
            return
        self._let_go(call)
        call.gone = call.finished = True
        call.output = []
        handler = call.handler
        call.handler = None
        if handler is not None:
            try:
                handler.closed()
            except Exception:
                _log.exception("handler failed in closed()")

    def _let_go(self, call: Ngh2Call) -> None:
        """Free the message under way: nobody will read it."""
        self._held_bytes -= call.held_bytes
        call.held_bytes = 0
        call.deframer = Deframer(0)

    def _fail(self, call: Ngh2Call) -> None:
        _log.exception("handler failed: %s", dict(call.metadata).get(b":path", b"").decode("latin-1"))
        call.finish(Status.INTERNAL, "internal error")


def _framing_status(error: FramingError) -> Status:
    if isinstance(error, MessageTooLargeError):
        return Status.RESOURCE_EXHAUSTED
    return Status.UNIMPLEMENTED if isinstance(error, CompressedMessageError) else Status.INTERNAL
