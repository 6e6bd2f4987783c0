"""Start a server of either kind."""

from __future__ import annotations

from typing import Literal, Protocol

from extproc.transport.limits import TransportLimits
from extproc.transport.service import Service
from extproc.transport.tls import TlsFiles

TransportName = Literal["ngh2", "grpcio"]


class Server(Protocol):
    """A running server."""

    address: str
    """`unix:/path` or `host:port`, with the real port where 0 was asked for. A target for grpcio clients."""

    @property
    def connections(self) -> int | None:
        """Open connections; None where the library does not tell."""
        ...

    @property
    def open_calls(self) -> int:
        """Open calls, over all connections."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let the open ones run for `grace_s` seconds, then end what is left."""
        ...


async def serve(
    service: Service,
    listen: str,
    transport: TransportName = "ngh2",
    limits: TransportLimits | None = None,
    tls: TlsFiles | None = None,
) -> Server:
    """Serve on `unix:/path` or `host:port` (port 0 = any free one), the latter with TLS where told so.

    Raises ListenError.
    """
    if transport == "ngh2":
        # Not at the top: grpcio serves where ngh2 has no wheel.
        from extproc.transport.server import Ngh2Server

        server = Ngh2Server(service, limits, tls)
        await server.start(listen)
        return server
    from extproc.transport.grpcio_server import GrpcioServer

    reference = GrpcioServer(service, limits, tls)
    await reference.start(listen)
    return reference
