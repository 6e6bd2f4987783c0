"""Worker addresses as Envoy and the load balancer know them: IP address and port."""

from __future__ import annotations

import asyncio
import socket

from extproc.config.address import HostPort


class AddressError(Exception):
    """A worker's host name cannot be looked up."""


async def resolve(address: HostPort) -> HostPort:
    """An IP address for a host name, looked up once. Raises AddressError."""
    if address.is_ip:
        return address
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressError(
            f"the worker's host name {address.host!r} cannot be looked up ({error.strerror or error}); "
            "write its IP address, or mend the name service"
        ) from error
    # IPv4 first: that is what most engines listen on when both exist.
    hosts = sorted({str(entry[4][0]) for entry in found}, key=lambda host: (":" in host, host))
    return HostPort(hosts[0], address.port)
