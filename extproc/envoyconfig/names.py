"""Names that the printed configuration and the processor must agree on."""

from __future__ import annotations

POOL_HEADER = "x-gateway-pool"
"""Set by the processor: the pool, which is Envoy's cluster."""

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Set by the processor: addresses of workers, `ip:port[,ip:port…]`, in order of preference."""

DESTINATION_NAMESPACE = "envoy.lb"
"""Dynamic metadata that carries the same value, under DESTINATION_HEADER as key. Envoy chooses by this one."""

SUBSET_NAMESPACE = "envoy.lb.subset_hint"
"""Dynamic metadata of a mesh that restricts the choice, under `x-gateway-destination-endpoint-subset` as key."""

DEBUG_HEADER = "x-gateway-debug"
"""Asks for the routing decision; reaches the processor only where debug clients are configured."""

CLIENT_ADDRESS_ATTRIBUTE = "source.address"

RESPONSE_ATTRIBUTES = ("response.code_details", "response.flags", "upstream.address")
"""They tell Envoy's own replies from engines' answers, and which host served, also after a retry."""

STRIPPED_HEADERS = (
    POOL_HEADER,
    DESTINATION_HEADER,
    "x-gateway-destination-endpoint-subset",
    "x-gateway-destination-endpoint-served",
    "x-gateway-decision",
    "x-gateway-losses",
)
"""Never taken from a client."""

PROCESSOR_CLUSTER = "processor"
EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
"""The gRPC service, and the name under which its health is asked for."""


def session_metadata(at: int) -> str:
    """The gRPC metadata by which Envoy chooses a processor's socket: a copy of a request header."""
    return f"x-gateway-session-{at}"
