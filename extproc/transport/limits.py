"""Every limit of the transport, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Sizes in bytes, times in seconds. The grpcio transport uses those that its library has a setting for.

    A client that does not read its answers can make one call hold about `stream_queue_high_bytes`, two
    `stream_window_bytes` (what was under way when that was noticed) and one message; all calls of a connection
    together hold at most `connection_buffer_bytes`.
    """

    max_message_bytes: int = 16 * MIB
    """Largest message received. One body piece of Envoy can be as large as its buffer limit."""

    max_concurrent_streams: int = 10_000
    """Calls open at once on one connection. Clients queue further ones, Envoy for ever, so it is generous."""

    stream_window_bytes: int = 256 * KIB
    """How much a client may send on one call before we have read it."""

    connection_window_bytes: int = 16 * MIB
    """The same over all calls of a connection. HTTP/2's default of 64 KiB would throttle all of them."""

    stream_queue_high_bytes: int = 256 * KIB
    """A call with more unsent bytes than this is not read from…"""

    stream_queue_low_bytes: int = 64 * KIB
    """…until no more than this is left."""

    stream_queue_limit_bytes: int = 128 * MIB
    """A call with more unsent bytes than this is reset: its handler produces, and its client does not read."""

    connection_buffer_bytes: int = 512 * MIB
    """Unsent bytes and unfinished messages of one connection. The call that exceeds it ends RESOURCE_EXHAUSTED."""

    socket_buffer_high_bytes: int = 1 * MIB
    """Bytes that the socket has not taken: above this, further ones wait in HTTP/2's queues, where they are counted…"""

    socket_buffer_low_bytes: int = 256 * KIB
    """…until no more than this is left."""

    max_header_list_bytes: int = 64 * KIB
    """Headers of one call, decoded. A client that sends more loses its connection."""

    resets_burst: int = 2**64 - 1
    """Calls that a client may reset at once. Envoy resets every ext_proc call, so behind Envoy it is unlimited; a
    finite value (for a port that strangers reach) must exceed the peak rate of requests on one connection."""

    resets_per_second: int = 2**64 - 1
    """How fast the allowance of `resets_burst` is refilled."""

    handshake_timeout_s: float = 10.0
    """A connection that has not sent its HTTP/2 preface and SETTINGS by then is dropped."""

    keepalive_s: float = 60.0
    """A connection that was silent for this long is pinged, and dropped if it is silent for as long again."""

    max_idle_s: float = math.inf
    """A connection without a call for this long, or up to twice as long, is drained. Never by default: an Envoy without
    traffic would only connect again."""

    max_age_s: float = math.inf
    """A connection is drained at this age, give or take a tenth, so that clients which connect again spread anew over
    several processors behind one address. Never by default: Envoy spreads its calls itself."""

    max_age_grace_s: float = math.inf
    """How long the calls of a connection may go on after `max_age_s`; then they are reset."""

    close_timeout_s: float = 1.0
    """At the end of a stop: how long the last bytes may take to leave before the socket is cut."""

    def __post_init__(self) -> None:
        if self.stream_queue_low_bytes > self.stream_queue_high_bytes:
            raise ValueError("stream_queue_low_bytes must not exceed stream_queue_high_bytes")
        if self.socket_buffer_low_bytes > self.socket_buffer_high_bytes:
            raise ValueError("socket_buffer_low_bytes must not exceed socket_buffer_high_bytes")
        if not (self.max_idle_s > 0 and self.max_age_s > 0 and self.max_age_grace_s > 0):
            raise ValueError("max_idle_s, max_age_s and max_age_grace_s must be over 0; math.inf switches one off")
        if not 0 < self.max_message_bytes < 2**32:
            raise ValueError("max_message_bytes must be between 1 and 2^32 - 1: gRPC sends the length in 32 bits")
        if not 0 < self.stream_window_bytes < 2**31 or not 0 < self.connection_window_bytes < 2**31:
            raise ValueError("stream_window_bytes and connection_window_bytes must be between 1 and 2^31 - 1 (HTTP/2)")
