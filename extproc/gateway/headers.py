"""Headers between the processor and Envoy, and those of clients that end here."""

from __future__ import annotations

import ipaddress

import msgspec

from extproc.exchange.application import RequestHead
from extproc.ir import Loss

DESTINATION = "x-gateway-destination-endpoint"
POOL = "x-gateway-pool"
DEBUG = "x-gateway-debug"
DECISION = "x-gateway-decision"
LOSSES = "x-gateway-losses"

REMOVED = (
    # They describe the client's body.
    "content-length",
    "content-encoding",
    "accept-encoding",
    "expect",
    # A gRPC server would obey them.
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-status",
    # Secrets between the client and Envoy.
    "authorization",
    "proxy-authorization",
    "cookie",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    DEBUG,
)
"""Request headers that do not reach an engine."""

REMOVED_BUT_KEY = tuple([name for name in REMOVED if name != "authorization"])
"""The same where the header holds the gateway's own key by then."""


_MOST_LOSSES_BYTES = 8192
"""Envoy refuses an answer whose headers are too large."""


def losses_header(losses: tuple[Loss, ...]) -> tuple[str, str]:
    """What does not reach the engine, for those who may see it."""
    return LOSSES, msgspec.json.encode(losses).decode("ascii", "replace")[:_MOST_LOSSES_BYTES]


def source_of(head: RequestHead) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The client's address as Envoy saw it, where the configuration asks for the attribute."""
    address = head.attributes.get("source.address")
    if not isinstance(address, str):
        return None
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
