"""The health protocol grpc.health.v1, as Envoy, Kubernetes and gRPC clients ask for it.

Source: gRPC Health Checking Protocol (health-checking.md) and grpc/health/v1/health.proto. Its two messages have one
field each, so they are read and written here by hand.
"""

from __future__ import annotations

from collections.abc import Container
from enum import IntEnum

from extproc.transport.adapters import unary
from extproc.transport.service import Call, CallHandler, Service
from extproc.transport.status import RpcError, Status

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"


class ServingStatus(IntEnum):
    """grpc.health.v1.HealthCheckResponse.ServingStatus."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3  # only in answers to Watch


class Health:
    """Statuses by service name; "" is the server as a whole. All methods are for the loop's thread only."""

    def __init__(self) -> None:
        self._statuses = {"": ServingStatus.SERVING}
        self._watchers: dict[str, set[_Watch]] = {}
        self._closing = False

    def service(self) -> Service:
        """The two methods, to be merged into what a server serves."""
        return {CHECK: unary(self._check), WATCH: lambda call: _Watch(call, self)}

    def set(self, name: str, status: ServingStatus) -> None:
        """Change a status; watchers hear of it at once. Without effect after `shut_down`."""
        if self._closing or self._statuses.get(name) is status:
            return
        self._statuses[name] = status
        for watch in self._watchers.get(name, ()):
            watch.tell(status)

    def shut_down(self, *, but: Container[str] = ()) -> None:
        """Everything is NOT_SERVING from now on, whatever is set: the first step of a graceful stop.

        `but`: services that keep their status, since who watches them would end a process that still has work.
        """
        for name in list(self._statuses):
            if name not in but:
                self.set(name, ServingStatus.NOT_SERVING)
        self._closing = True

    def end_watches(self) -> None:
        """End every Watch, which otherwise lasts for ever: a stop would wait for them until its grace is over."""
        for watches in list(self._watchers.values()):
            for watch in list(watches):
                watch.end()

    def _check(self, request: bytes) -> bytes:
        name = decode_request(request)
        status = self._statuses.get(name)
        if status is None:
            raise RpcError(Status.NOT_FOUND, f"unknown service {name!r}")
        return encode_response(status)

    def _status(self, name: str) -> ServingStatus:
        return self._statuses.get(name, ServingStatus.SERVICE_UNKNOWN)

    def _add(self, name: str, watch: _Watch) -> None:
        self._watchers.setdefault(name, set()).add(watch)

    def _discard(self, name: str, watch: _Watch) -> None:
        watches = self._watchers.get(name)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                del self._watchers[name]


class _Watch(CallHandler):
    """One client that is told every change."""

    def __init__(self, call: Call, health: Health) -> None:
        self._call = call
        self._health = health
        self._name: str | None = None

    def message(self, data: bytes) -> None:
        if self._name is not None:
            self._call.finish(Status.INTERNAL, "this method takes one request message, and a second one came")
            return
        try:
            self._name = decode_request(data)
        except RpcError as error:
            self._call.finish(error.status, error.details)
            return
        self._health._add(self._name, self)
        self.tell(self._health._status(self._name))

    def half_close(self) -> None:
        if self._name is None:
            self._call.finish(Status.INTERNAL, "this method takes one request message, and none came")

    def closed(self) -> None:
        if self._name is not None:
            self._health._discard(self._name, self)

    def tell(self, status: ServingStatus) -> None:
        self._call.send(encode_response(status))

    def end(self) -> None:
        self._call.finish(Status.UNAVAILABLE, "the server is stopping")


def encode_response(status: ServingStatus) -> bytes:
    """HealthCheckResponse: field 1, an enum. Zero is left out, as proto3 does."""
    return bytes((0x08, status)) if status else b""


def decode_request(data: bytes) -> str:
    """HealthCheckRequest: field 1, a string, empty by default; other fields are skipped. Raises RpcError."""
    name = b""
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == 2:
                size, at = _varint(data, at)
                if tag >> 3 == 1:
                    name = data[at : at + size]
                at += size
            elif kind == 0:
                _, at = _varint(data, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                raise ValueError
        if at > len(data):
            raise ValueError
        return name.decode()
    except (ValueError, IndexError):
        raise RpcError(Status.INVALID_ARGUMENT, "the request is not a grpc.health.v1.HealthCheckRequest") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it."""
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError
