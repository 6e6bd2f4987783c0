"""What calls send, on its way into ngh2: header blocks, data, trailers, and the flow control of both directions.

A stream may be gone before its call knows: ngh2 then refuses, which only means that there is nothing to do, since its
StreamClosed event is on the way. Methods that return a bool say whether ngh2 has something new to write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ngh2 import Connection, ErrorCode, Header, NGH2Error

from extproc.transport.call import Ngh2Call
from extproc.transport.limits import TransportLimits
from extproc.transport.status import escape_details

_log = logging.getLogger(__name__)

_RESPONSE_HEADERS: list[Header] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
_TRAILERS_OK: list[Header] = [(b"grpc-status", b"0")]


class Outbound:
    """The sending side of one connection's calls."""

    def __init__(self, http: Connection, limits: TransportLimits) -> None:
        self._http = http
        self._limits = limits
        self.slowed: set[int] = set()  # streams with unsent bytes over the high mark: their windows are 0
        self.ended_first: set[int] = set()  # streams that we ended and the client has not: to be reset once sent

    def hand_over(self, call: Ngh2Call) -> None:
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
                    http.send_response(call.stream_id, _lone_headers(call), end_stream=True)
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

    def forget(self, stream_id: int) -> None:
        """The stream is over."""
        self.slowed.discard(stream_id)
        self.ended_first.discard(stream_id)

    def hold_back(self, calls: Iterable[Ngh2Call]) -> bool:
        """Stop reading from those calls whose client does not read, and reset those that go too far."""
        http = self._http
        limits = self._limits
        changed = False
        for call in calls:
            size = http.queued_body_size(call.stream_id)
            if size <= limits.stream_queue_high_bytes or call.gone:
                continue
            if size > limits.stream_queue_limit_bytes:
                self.reset_flooded(call)
                changed = True
            elif not call.peer_ended and call.stream_id not in self.slowed:
                try:
                    http.set_local_window_size(0, stream_id=call.stream_id)
                except NGH2Error:
                    continue
                self.slowed.add(call.stream_id)
        return changed

    def reset_largest(self, calls: Iterable[Ngh2Call]) -> None:
        """Reset the call with the most unsent bytes; there must be one."""
        self.reset_flooded(max(calls, key=lambda call: self._http.queued_body_size(call.stream_id)))

    def reset_flooded(self, call: Ngh2Call) -> None:
        """Drop a call with everything unsent. A gRPC client sees RESOURCE_EXHAUSTED."""
        _log.warning("call reset: %d bytes unsent", self._http.queued_body_size(call.stream_id))
        call.finished = True
        call.output = []
        self._http.reset_stream(call.stream_id, ErrorCode.ENHANCE_YOUR_CALM)

    def speed_up(self) -> bool:
        """Read again from calls whose client has caught up."""
        http = self._http
        low = self._limits.stream_queue_low_bytes
        caught_up = [stream_id for stream_id in self.slowed if http.queued_body_size(stream_id) <= low]
        for stream_id in caught_up:
            self.slowed.discard(stream_id)
            try:
                http.set_local_window_size(self._limits.stream_window_bytes, stream_id=stream_id)
            except NGH2Error:
                continue
        return bool(caught_up)

    def reset_ended(self) -> bool:
        """Close streams that only we have ended, so that clients stop sending (RFC 9113, section 8.1).

        Only once the trailers are out: a reset overtakes them, and ngh2 holds them while a window is exactly 0.
        """
        http = self._http
        if http.remote_window_size <= 0:
            return False
        changed = False
        for stream_id in list(self.ended_first):
            try:
                if http.queued_body_size(stream_id) or http.stream_remote_window_size(stream_id) <= 0:
                    continue
                http.reset_stream(stream_id, ErrorCode.NO_ERROR)
                changed = True
            except NGH2Error:
                pass
            self.ended_first.discard(stream_id)
        return changed

    def _ended(self, call: Ngh2Call) -> None:
        if not call.peer_ended:
            self.ended_first.add(call.stream_id)


def _lone_headers(call: Ngh2Call) -> list[Header]:
    if call.http_status:
        return [(b":status", call.http_status)]
    return _RESPONSE_HEADERS + _trailers(call)


def _trailers(call: Ngh2Call) -> list[Header]:
    if not call.status and not call.details:
        return _TRAILERS_OK
    return [(b"grpc-status", b"%d" % call.status), (b"grpc-message", escape_details(call.details))]
