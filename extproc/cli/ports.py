"""Free TCP ports for what a command starts."""

from __future__ import annotations

import socket


def is_free(host: str, port: int) -> bool:
    """Whether one could listen there now. `host` is an IP address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Linux refuses a second listener only here when both set SO_REUSEADDR.
            probe.listen()
        except OSError:
            return False
    return True


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody uses at the moment: distinct, since all are held until the last is found."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probes = [socket.socket(family) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
