"""The interface between the transport and what it serves.

A service maps gRPC method paths to handlers of one call. A handler is synchronous: a message arrives, the handler
sends what it has to say, and the transport writes everything of one read at once (batching is what makes the data path
cheap). Work that must wait runs elsewhere and calls `Call.send` later, from the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Call(Protocol):
    """The transport's side of one gRPC call. All methods are for the loop's thread only and never raise."""

    @property
    def metadata(self) -> list[tuple[bytes, bytes]]:
        """The request's headers, pseudo-headers included, names in lower case."""
        ...

    def send(self, message: bytes) -> None:
        """Queue one message (without the gRPC prefix). A no-op once the call is over."""
        ...

    def finish(self, status: int = 0, details: str = "") -> None:
        """End the call with a gRPC status, after what was queued. Only the first call counts."""
        ...


class CallHandler(Protocol):
    """The service's side of one gRPC call."""

    def message(self, data: bytes) -> None:
        """One whole message. An exception ends the call with INTERNAL and is logged by the transport."""
        ...

    def half_close(self) -> None:
        """The client sends no more. Not called if the call was reset first."""
        ...

    def closed(self) -> None:
        """The call is over, for whatever reason: the last thing that a handler hears, exactly once."""
        ...


MethodHandler = Callable[[Call], CallHandler]
"""Called at the request's headers; returns the handler of this call."""

Service = Mapping[str, MethodHandler]
"""gRPC method path, such as `/envoy.service.ext_proc.v3.ExternalProcessor/Process`, to its handlers."""
