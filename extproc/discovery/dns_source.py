"""Workers that are the addresses of a name, looked up again and again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from extproc.config.address import HostPort
from extproc.config.fleet import DnsWorkers
from extproc.discovery.roster import Found, Tell

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""All IP addresses of a name. Raises OSError."""


async def look_up_all(name: str) -> list[str]:
    """By the system's resolver: IPv4 addresses if there are any, else IPv6."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    for family in (socket.AF_INET, socket.AF_INET6):
        addresses = sorted({str(entry[4][0]).partition("%")[0] for entry in found if entry[0] == family})
        if addresses:
            return addresses
    return []


_NO_ADDRESSES = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
"""No such name; a name without addresses, which not every platform tells apart."""


class DnsSource:
    """A name that is not there has no workers left only when the resolver says so, not when it does not answer."""

    def __init__(self, section: DnsWorkers, lookup: Lookup = look_up_all) -> None:
        self._section = section
        self._lookup = lookup

    async def run(self, tell: Tell, problem: Callable[[str], None]) -> None:
        """See Source."""
        section = self._section
        while True:
            try:
                addresses = await self._lookup(section.name)
            except socket.gaierror as error:
                if error.errno in _NO_ADDRESSES:  # a headless service without ready pods
                    tell(())
                else:
                    problem(f"{section.name} cannot be looked up: {error.strerror or error}")
            except OSError as error:
                problem(f"{section.name} cannot be looked up: {error.strerror or error}")
            else:
                tell([Found(str(HostPort(ip, section.port)), None, section.ranks) for ip in addresses])
            await asyncio.sleep(section.interval_s)
