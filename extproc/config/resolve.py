"""Looks up workers that are named by host: Envoy picks workers by IP address, and takes no names in endpoint files."""

from __future__ import annotations

import socket
from collections.abc import Callable

from extproc.config.address import HostPort
from extproc.config.schema import Config


class ResolveError(Exception):
    """Host names that cannot be looked up, or that lead two workers to one address."""


def look_up(host: str) -> str:
    """One IP address of `host`, IPv4 if it has any. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0]).partition("%")[0]


def resolve_workers(config: Config, lookup: Callable[[str], str] = look_up) -> Config:
    """The same configuration with IP addresses for all workers; blocks while it asks. Raises ResolveError.

    A worker without a name of its own keeps the one that the file gives it.
    """
    problems: list[str] = []
    owners: dict[HostPort, str] = {}
    pools = []
    for pool in config.pools:
        workers = []
        for worker in pool.workers:
            address = worker.address
            if not address.is_ip:
                try:
                    address = HostPort(lookup(address.host), address.port)
                except OSError as error:
                    problems.append(f"the worker {worker.address} cannot be looked up: {error.strerror or error}")
                    continue
            if address in owners:
                problems.append(f"the workers {owners[address]} and {worker.address} are both at {address}")
            owners.setdefault(address, str(worker.address))
            label = worker.name or (None if worker.address.is_ip else worker.label)
            workers.append(worker.model_copy(update={"address": address, "name": label}))
        pools.append(pool.model_copy(update={"workers": tuple(workers)}))
    if problems:
        raise ResolveError("\n".join(problems))
    return config.model_copy(update={"pools": tuple(pools)})
