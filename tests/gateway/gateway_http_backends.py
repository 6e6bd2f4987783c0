"""Pools of HTTP engines without any engine."""

from __future__ import annotations

from extproc.gateway.backend import Backend
from extproc.gateway.http_target import HttpTarget
from extproc.routing.policies import LeastLoad
from extproc.routing.pool import Pool


def http_backend(target: HttpTarget) -> Backend:
    """One without workers."""
    return Backend(Pool("http", (), LeastLoad(), 0), target, None)
