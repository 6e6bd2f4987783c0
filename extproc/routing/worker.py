"""One engine as routing sees it: its address, whether it may be chosen, and what we have sent it."""

from __future__ import annotations

from enum import Enum


class WorkerState(Enum):
    """Only READY workers are candidates."""

    STARTING = "starting"  # not seen healthy yet
    READY = "ready"
    UNHEALTHY = "unhealthy"


class Worker:
    """A worker of a pool, with the load that this process has put on it.

    `waiting_tokens` and `running` change only through a Reservation.
    """

    __slots__ = ("address", "label", "running", "state", "waiting_tokens")

    def __init__(self, label: str, address: str) -> None:
        """`address`: `ip:port`, IPv6 in brackets, exactly as it stands in Envoy's endpoints."""
        self.label = label
        self.address = address
        self.state = WorkerState.STARTING
        self.waiting_tokens = 0  # prompt tokens dispatched and not yet answered by a first token
        self.running = 0  # requests dispatched and not yet ended

    def __repr__(self) -> str:
        return f"Worker({self.label} at {self.address}, {self.state.value})"
