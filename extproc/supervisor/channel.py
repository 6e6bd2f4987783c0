"""What supervisor and processes say to each other: one JSON object a line over a socket pair.

A process that reads the end of it has lost its supervisor and ends at once; a supervisor that does has lost the
process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from extproc.discovery.roster import Entry
from extproc.observe.exposition import Family

_MAX_LINE_BYTES = 64 << 20
"""A family of a large fleet has a line of megabytes."""


class Start(Struct, frozen=True, tag="start"):
    """The first word to a process: what it is to serve."""

    config: str  # as JSON, with addresses looked up: all processes have the same
    process: int
    transport: str
    settle_s: float
    roster: Mapping[str, Sequence[Entry]] | None = None  # the workers; the configuration's without it


class Workers(Struct, frozen=True, tag="workers"):
    """The workers are these from now on."""

    roster: Mapping[str, Sequence[Entry]]


class Ask(Struct, frozen=True, tag="ask"):
    """Tell your metrics."""

    number: int


class Started(Struct, frozen=True, tag="started"):
    """The process serves on its sockets."""


class Failed(Struct, frozen=True, tag="failed"):
    """The process cannot serve, and ends."""

    reason: str


class Ready(Struct, frozen=True, tag="ready"):
    """Whether the process can take requests."""

    ready: bool
    detail: Mapping[str, object]


class Told(Struct, frozen=True, tag="told"):
    """One family of the answer to `Ask`; the last has none."""

    number: int
    family: Family | None


ToProcess = Start | Workers | Ask
ToSupervisor = Started | Failed | Ready | Told

_Received = TypeVar("_Received")


class Channel(Generic[_Received]):
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: object) -> None:
        """Use `open`."""
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.json.Decoder[_Received] = msgspec.json.Decoder(kind)
        self._encoder = msgspec.json.Encoder()

    @classmethod
    async def open(cls, end: socket.socket, kind: object) -> Channel[_Received]:
        """`kind`: the type of what is received. The channel owns the socket."""
        end.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=_MAX_LINE_BYTES)
        return cls(reader, writer, kind)

    def send(self, message: ToProcess | ToSupervisor) -> None:
        """Queue a message. Does nothing once the other end is gone."""
        if not self._writer.is_closing():
            self._writer.write(self._encoder.encode(message) + b"\n")

    async def drain(self) -> None:
        """Wait until most of what was queued is on its way. Raises OSError."""
        await self._writer.drain()

    async def receive(self) -> _Received | None:
        """The next message; None at the end."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        return self._decoder.decode(line)

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
