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
from extproc.transport.clocks import Clocks
from extproc.transport.inbound import OpenCalls
from extproc.transport.limits import TransportLimits
from extproc.transport.outbound import Outbound
from extproc.transport.service import Service
from extproc.transport.tls import ALPN

_log = logging.getLogger(__name__)

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
        self._limits = limits
        self._config = config
        self._opened = opened
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._calls = OpenCalls(service, limits, self._on_queued)
        self._queued: list[Ngh2Call] = []  # calls with output or an end that ngh2 does not have yet
        self._over = False  # nothing may be given to or asked from ngh2 any more
        self._handling = False  # a flush follows anyway
        self._flush_scheduled = False
        self._write_paused = False
        self._draining = False
        self._clocks = Clocks(self, limits, self._loop)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits = self._limits
        self._transport = cast(asyncio.Transport, transport)
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None and encrypted.selected_alpn_protocol() != ALPN:
            _log.info("connection dropped: its TLS did not agree on %s (ALPN)", ALPN)
            self.abort()
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
        self._outbound = Outbound(self._http, limits)
        self._clocks.start()
        self._opened(self)
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._clocks.heard = True
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
        self._clocks.cancel()
        self._queued.clear()
        # No StreamClosed comes for what was open. Handlers may end other calls here, but none can be added.
        for stream_id in list(self._calls.by_stream):
            self._calls.forget(stream_id)
        self._lost(self)

    # What the server calls.

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._calls.by_stream)

    @property
    def opened_calls(self) -> int:
        """How many calls there were."""
        return self._calls.opened

    def ping(self) -> None:
        """Make the client say something; any answer shows in what is received."""
        if self._over:
            return
        try:
            self._http.ping()
        except NGH2Error:
            self.abort()
            return
        self._flush()

    def drain(self) -> None:
        """Take no new calls, let the open ones finish, then close.

        Two GOAWAYs with a ping between them: calls that the client had sent before it read the first are still served
        (RFC 9113, section 6.8).
        """
        if self._over or self._draining:
            return
        self._draining = True
        if not self._clocks.greeted:
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
            for stream_id in list(self._calls.by_stream):
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
        by_stream = calls.by_stream
        for event in events:
            # Hot: a token is one such event. Types are compared, since that costs least and tells mypy too.
            if type(event) is DataReceived:
                stream_id = event.stream_id
                call = by_stream.get(stream_id)
                if call is not None and stream_id not in dead:
                    calls.on_data(call, event.data)
                    if event.end_stream:
                        calls.on_end(call)
            elif type(event) is RequestReceived:
                if event.stream_id not in dead:
                    calls.on_request(event.stream_id, event.headers, end_stream=event.end_stream)
            elif type(event) is StreamClosed:
                self._outbound.forget(event.stream_id)
                calls.forget(event.stream_id)
            elif type(event) is TrailersReceived:
                call = by_stream.get(event.stream_id)
                if call is not None and call.stream_id not in dead:
                    calls.on_end(call)
            elif type(event) is PingAcknowledged:
                if event.opaque_data == _DRAIN_PING:
                    self._http.send_goaway(ErrorCode.NO_ERROR)
            elif type(event) is SettingsReceived:
                self._clocks.greeted = True
            elif type(event) is ConnectionClosed:
                # After a protocol error, or when the last stream of a drained connection is gone.
                self._over = True
                self._transport.write(self._http.data_to_send())
                self._transport.close()
                self._clocks.cut_after(self._limits.close_timeout_s)
                return

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
        outbound = self._outbound
        self._handling = True
        try:
            while True:
                changed = False
                queued = self._queued
                if queued:
                    self._queued = []
                    for call in queued:
                        outbound.hand_over(call)
                while not self._write_paused:
                    data = http.data_to_send(_WRITE_BYTES)
                    if data:
                        self._transport.write(data)
                    if len(data) < _WRITE_BYTES:
                        break
                unsent_bytes = http.queued_body_size()
                if unsent_bytes:
                    changed = outbound.hold_back(queued)
                    if unsent_bytes > self._limits.connection_buffer_bytes and not changed:
                        changed = self._relieve(unsent_bytes)
                if outbound.slowed:
                    changed |= outbound.speed_up()
                if outbound.ended_first and not self._write_paused:
                    changed |= outbound.reset_ended()
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

    def _relieve(self, unsent_bytes: int) -> bool:
        """Too much is unsent: drop the largest call, or the connection if not even that could be said to the client."""
        if self._write_paused:
            _log.warning("connection dropped: %d bytes unsent and the client does not read", unsent_bytes)
            self.abort()
            return False
        self._outbound.reset_largest(self._calls.by_stream.values())
        return True
