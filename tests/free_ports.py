"""Ports for servers that tests start."""

from __future__ import annotations

import itertools
import os
import socket

# Below the range that the kernel gives to outgoing connections, which otherwise takes a port between its choice and its
# use; and each parallel test process has a part of its own.
_FIRST = 12_000
_PER_PROCESS = 900
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_begin = _FIRST + _process * _PER_PROCESS
# Test runs at the same time on one machine begin at different places: two Envoys would share a port without complaint.
_offset = os.getpid() * 37 % _PER_PROCESS
_numbers = itertools.cycle([_begin + (_offset + number) % _PER_PROCESS for number in range(_PER_PROCESS)])


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on."""
    for port in itertools.islice(_numbers, _PER_PROCESS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")
