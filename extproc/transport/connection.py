"""One HTTP/2 connection that serves gRPC calls: ngh2 (libnghttp2, no I/O) behind an asyncio Protocol.

The rules that must not be broken:
- One read, one flush. All events of a read are handled before anything is written; what is sent outside of a read
  waits for one flush per loop turn. Under load one write then answers many calls, which makes them three times cheaper.
- A stream can be gone before its own event is handled, and a batch can end the connection: every ngh2 call about a
  stream is guarded, and a refusal only means that the call is over. `closed()` of its handler follows from the
  StreamClosed event, or from the loss of the socket.
- Windows are updated by ngh2 (`auto_window_update`). A client that does not read its answers is slowed by setting its
  stream's window to 0, never by not reading the socket: its window updates and resets arrive there.
- Bytes wait in ngh2, not in the socket's buffer, since only there they are counted per stream.
- Clients may reset streams at any rate, without this being an error: Envoy ends every ext_proc call so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from ngh2 import (
    Configuration,
    Connection,
    ConnectionClosed,
    DataReceived,
    ErrorCode,
    Event,
    Header,
    NGH2Error,
    PingAcknowledged,
    RequestReceived,
    Role,
    Setting,
    SettingsReceived,
    StreamClosed,
    StreamReset,
    TrailersReceived,
)

from extproc.transport.call import Ngh2Call
from extproc.transport.framing import CompressedMessageError, Deframer, FramingError, MessageTooLargeError
from extproc.transport.limits import TransportLimits
from extproc.transport.service import Service
from extproc.transport.status import Status, escape_details

_log = logging.getLogger(__name__)

_RESPONSE_HEADERS: list[Header] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_TRAILERS_OK: list[Header] = [(b"grpc-status", b"0")]
_DRAIN_PING = b"draining"  # tells its answer from a keep-alive's

# ngh2 allocates what one data_to_send returns; above glibc's mmap threshold (128 KiB) that costs system calls, which
# made bulk transfers 2.5 times dearer.
_WRITE_BYTES = 64 * 1024


def configuration(limits: TransportLimits) -> Configuration:
    """ngh2's settings, shared by all connections of a server."""
    return Configuration(
        stream_reset_rate_limit=(limits.resets_burst, limits.resets_per_second),
        max_inbound_header_list_size=limits.max_header_list_bytes,
    )


class Ngh2Connection(asyncio.Protocol):
    """One connection, driven only from the loop's thread."""

    def __init__(
        self,
        service: Service,
        limits: TransportLimits,
        config: Configuration,
        *,
        opened: Callable[[Ngh2Connection], None],
        lost: Callable[[Ngh2Connection], None],
    ) -> None:
        self._service = service
        self._limits = limits
        self._config = config
        self._opened = opened
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Ngh2Call] = {}
        self._queued: list[Ngh2Call] = []  # calls with output or an end that ngh2 does not have yet
        self._slowed: set[int] = set()  # streams with unsent bytes over the high mark: their windows are 0
        self._ended_first: set[int] = set()  # streams that we ended and the client has not: to be reset once sent
        self._held_bytes = 0  # of incomplete messages
        self._over = False  # nothing may be given to or asked from ngh2 any more
        self._handling = False  # a flush follows anyway
        self._flush_scheduled = False
        self._write_paused = False
        self._draining = False
        self._greeted = False  # the client's SETTINGS are here
        self._heard = False  # something was received since the last tick
        self._pinged = False  # a ping went out at the last tick
        self._timer: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits = self._limits
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(limits.socket_buffer_high_bytes, limits.socket_buffer_low_bytes)
        self._http = Connection(Role.SERVER, self._config)
        self._http.initiate_connection(
            {
                Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
            }
        )
        self._http.set_local_window_size(limits.connection_window_bytes)
        self._restart_timer(limits.handshake_timeout_s, self._tick)
        self._opened(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._heard = True
        self._handling = True
        try:
            self._http.receive_data(data)
            self._dispatch(self._http.events())
        except NGH2Error as error:
            # A flood, a header list over the limit, or no HTTP/2 at all: ngh2 can say nothing more on this connection.
            _log.info("connection dropped: %s", error)
            self.abort()
        finally:
            self._handling = False
        self._flush()

    def eof_received(self) -> bool:
        return False  # the transport closes itself, and connection_lost follows

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._slowed.clear()
        self._ended_first.clear()
        self._queued.clear()
        # No StreamClosed comes for what was open. Handlers may end other calls here, but none can be added.
        for stream_id in list(self._calls):
            self._forget(stream_id)
        self._lost(self)

    # What the server calls.

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._calls)

    def drain(self) -> None:
        """Take no new calls, let the open ones finish, then close.

        Two GOAWAYs with a ping between them: calls that the client had sent before it read the first are still served
        (RFC 9113, section 6.8).
        """
        if self._over or self._draining:
            return
        self._draining = True
        if not self._greeted:
            self.abort()
            return
        try:
            self._http.send_shutdown_notice()
            self._http.ping(_DRAIN_PING)
        except NGH2Error:
            self.abort()
            return
        self._flush()

    def terminate(self) -> None:
        """Reset what is still open and close."""
        if self._over:
            return
        if self._write_paused:
            self.abort()  # the client does not even read what it has
            return
        try:
            for stream_id in list(self._calls):
                self._http.reset_stream(stream_id, ErrorCode.CANCEL)
            self._flush()
            if not self._over:
                self._http.terminate_connection(ErrorCode.NO_ERROR)
        except NGH2Error:
            self.abort()
            return
        self._flush()

    def abort(self) -> None:
        """Cut the socket; connection_lost follows."""
        self._over = True
        self._transport.abort()

    # Events.

    def _dispatch(self, events: list[Event]) -> None:
        # Of a stream that this same batch resets, nothing is handled: ngh2 has forgotten it already.
        dead = {event.stream_id for event in events if type(event) is StreamReset}
        calls = self._calls
        for event in events:
            kind = type(event)
            if kind is DataReceived:
                event = cast(DataReceived, event)
                call = calls.get(event.stream_id)
                if call is not None and event.stream_id not in dead:
                    self._on_data(call, event.data)
                    if event.end_stream:
                        self._on_end(call)
            elif kind is RequestReceived:
                event = cast(RequestReceived, event)
                if event.stream_id not in dead:
                    self._on_request(event.stream_id, event.headers, event.end_stream)
            elif kind is StreamClosed:
                self._forget(cast(StreamClosed, event).stream_id)
            elif kind is TrailersReceived:
                call = calls.get(cast(TrailersReceived, event).stream_id)
                if call is not None and call.stream_id not in dead:
                    self._on_end(call)
            elif kind is PingAcknowledged:
                if cast(PingAcknowledged, event).opaque_data == _DRAIN_PING:
                    self._http.send_goaway(ErrorCode.NO_ERROR)
            elif kind is SettingsReceived:
                self._greeted = True
            elif kind is ConnectionClosed:
                # After a protocol error, or when the last stream of a drained connection is gone.
                self._over = True
                self._transport.write(self._http.data_to_send())
                self._transport.close()
                self._restart_timer(self._limits.close_timeout_s, self._transport.abort)
                return

    def _on_request(self, stream_id: int, headers: tuple[Header, ...], end_stream: bool) -> None:
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
        self._calls[stream_id] = call
        if method != b"POST":
            self._refuse(call, b"405")
            return
        if content_type != b"application/grpc" and not content_type.startswith(
            (b"application/grpc+", b"application/grpc;")
        ):
            self._refuse(call, b"415")
            return
        open_call = self._service.get(path.decode("latin-1"))
        if open_call is None:
            call.finish(Status.UNIMPLEMENTED, f"unknown method {path.decode('latin-1')}")
            return
        try:
            call.handler = open_call(call)
            if end_stream:
                call.handler.half_close()
        except Exception:
            self._on_handler_error(call)

    def _on_data(self, call: Ngh2Call, data: bytes) -> None:
        handler = call.handler
        if call.finished or handler is None:
            return  # the client has not heard yet that the call is over
        deframer = call.deframer
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
            self._on_handler_error(call)
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

    def _let_go(self, call: Ngh2Call) -> None:
        """Free the message under way: nobody will read it."""
        self._held_bytes -= call.held_bytes
        call.held_bytes = 0
        call.deframer = Deframer(0)

    def _on_end(self, call: Ngh2Call) -> None:
        call.peer_ended = True
        self._ended_first.discard(call.stream_id)
        if call.finished or call.handler is None:
            return
        if call.deframer.missing_bytes:
            call.finish(Status.INTERNAL, "the request ended inside a message")
            return
        try:
            call.handler.half_close()
        except Exception:
            self._on_handler_error(call)

    def _on_handler_error(self, call: Ngh2Call) -> None:
        _log.exception("handler failed: %s", dict(call.metadata).get(b":path", b"").decode("latin-1"))
        call.finish(Status.INTERNAL, "internal error")

    def _forget(self, stream_id: int) -> None:
        """The stream is over: the handler hears it now, and nothing of the call is left."""
        call = self._calls.pop(stream_id, None)
        if call is None:
            return
        self._slowed.discard(stream_id)
        self._ended_first.discard(stream_id)
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

    # Sending.

    def _on_queued(self, call: Ngh2Call) -> None:
        self._queued.append(call)
        if not self._handling and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Give ngh2 what calls have queued, write what it makes of it, and handle what follows from that."""
        if self._over or self._handling:
            return
        http = self._http
        self._handling = True
        try:
            while True:
                changed = False
                touched = self._queued
                if touched:
                    self._queued = []
                    for call in touched:
                        self._hand_over(call)
                while not self._write_paused:
                    data = http.data_to_send(_WRITE_BYTES)
                    if data:
                        self._transport.write(data)
                    if len(data) < _WRITE_BYTES:
                        break
                unsent_bytes = http.queued_body_size()
                if unsent_bytes:
                    changed = self._hold_back(touched, unsent_bytes)
                if self._slowed:
                    changed |= self._speed_up()
                if self._ended_first and not self._write_paused:
                    changed |= self._reset_ended()
                events = http.events()
                if events:
                    self._dispatch(events)
                elif not changed and not self._queued:
                    return
                if self._over:
                    return
        except NGH2Error as error:
            _log.info("connection dropped: %s", error)
            self.abort()
        finally:
            self._handling = False

    def _hand_over(self, call: Ngh2Call) -> None:
        """Move what a call has queued to ngh2, its messages as one piece."""
        call.awaits_flush = False
        if call.gone:
            return
        http = self._http
        output = call.output
        try:
            if call.aborted:
                http.reset_stream(call.stream_id, ErrorCode.INTERNAL_ERROR)
                return
            if not call.started:
                call.started = True
                if call.finished and not output:
                    # Nothing but a status: one header block, which is also what retry policies of proxies look at.
                    http.send_response(call.stream_id, _RESPONSE_HEADERS + _trailers(call), end_stream=True)
                    self._ended(call)
                    return
                http.send_response(call.stream_id, _RESPONSE_HEADERS)
            if output:
                call.output = []
                http.send_data(call.stream_id, b"".join(output))
            if call.finished:
                http.send_trailers(call.stream_id, _trailers(call))
                self._ended(call)
        except NGH2Error:
            call.finished = True
            call.output = []

    def _refuse(self, call: Ngh2Call, http_status: bytes) -> None:
        """Answer what is no gRPC call in plain HTTP."""
        call.finished = call.started = True
        try:
            self._http.send_response(call.stream_id, [(b":status", http_status)], end_stream=True)
        except NGH2Error:
            return
        self._ended(call)

    def _ended(self, call: Ngh2Call) -> None:
        if not call.peer_ended:
            self._ended_first.add(call.stream_id)

    # Flow control. Each method says whether it gave ngh2 something to write.

    def _hold_back(self, calls: list[Ngh2Call], unsent_bytes: int) -> bool:
        """Stop reading from those calls whose client does not read, and end those that go too far."""
        http = self._http
        limits = self._limits
        changed = False
        for call in calls:
            size = http.queued_body_size(call.stream_id)
            if size <= limits.stream_queue_high_bytes or call.gone:
                continue
            if size > limits.stream_queue_limit_bytes:
                self._reset_flooded(call)
                changed = True
            elif not call.peer_ended and call.stream_id not in self._slowed:
                try:
                    http.set_local_window_size(0, stream_id=call.stream_id)
                except NGH2Error:
                    continue
                self._slowed.add(call.stream_id)
        if unsent_bytes > limits.connection_buffer_bytes and not changed and self._calls:
            if self._write_paused:
                _log.warning("connection dropped: %d bytes unsent and the client does not read", unsent_bytes)
                self.abort()
                return False
            self._reset_flooded(max(self._calls.values(), key=lambda call: http.queued_body_size(call.stream_id)))
            changed = True
        return changed

    def _reset_flooded(self, call: Ngh2Call) -> None:
        """Drop a call with everything unsent. A gRPC client sees RESOURCE_EXHAUSTED."""
        _log.warning("call reset: %d bytes unsent", self._http.queued_body_size(call.stream_id))
        call.finished = True
        call.output = []
        self._http.reset_stream(call.stream_id, ErrorCode.ENHANCE_YOUR_CALM)

    def _speed_up(self) -> bool:
        """Read again from calls whose client has caught up."""
        http = self._http
        low = self._limits.stream_queue_low_bytes
        caught_up = [stream_id for stream_id in self._slowed if http.queued_body_size(stream_id) <= low]
        for stream_id in caught_up:
            self._slowed.discard(stream_id)
            try:
                http.set_local_window_size(self._limits.stream_window_bytes, stream_id=stream_id)
            except NGH2Error:
                continue
        return bool(caught_up)

    def _reset_ended(self) -> bool:
        """Close streams that only we have ended, so that clients stop sending (RFC 9113, section 8.1).

        Only once the trailers are out: a reset overtakes them, and ngh2 holds them while a window is exactly 0.
        """
        http = self._http
        if http.remote_window_size <= 0:
            return False
        changed = False
        for stream_id in list(self._ended_first):
            try:
                if http.queued_body_size(stream_id) or http.stream_remote_window_size(stream_id) <= 0:
                    continue
                http.reset_stream(stream_id, ErrorCode.NO_ERROR)
                changed = True
            except NGH2Error:
                pass  # its StreamClosed is on the way
            self._ended_first.discard(stream_id)
        return changed

    # Time.

    def _tick(self) -> None:
        """Drop a connection that never spoke HTTP/2, or whose client is gone without a word."""
        if not self._greeted:
            _log.info("connection dropped: no HTTP/2 within %g s", self._limits.handshake_timeout_s)
            self.abort()
            return
        if self._heard:
            self._heard = self._pinged = False
        elif self._pinged:
            _log.info("connection dropped: silent for %g s", 2 * self._limits.keepalive_s)
            self.abort()
            return
        else:
            self._pinged = True
            self._http.ping()
            self._flush()
        self._restart_timer(self._limits.keepalive_s, self._tick)

    def _restart_timer(self, delay_s: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, callback)


def _trailers(call: Ngh2Call) -> list[Header]:
    if not call.status and not call.details:
        return _TRAILERS_OK
    return [(b"grpc-status", b"%d" % call.status), (b"grpc-message", escape_details(call.details))]


def _framing_status(error: FramingError) -> Status:
    if isinstance(error, MessageTooLargeError):
        return Status.RESOURCE_EXHAUSTED
    return Status.UNIMPLEMENTED if isinstance(error, CompressedMessageError) else Status.INTERNAL
