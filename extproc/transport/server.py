"""The gRPC server of the data path: listens, and stops gracefully. `connection` does the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from extproc.transport.connection import Ngh2Connection, configuration
from extproc.transport.limits import TransportLimits
from extproc.transport.listening import ListenError, SocketFile, UnixAddress, bind_unix, parse_listen
from extproc.transport.service import Service
from extproc.transport.tls import Certificates, TlsFiles

_log = logging.getLogger(__name__)

_BACKLOG = 1024


class Ngh2Server:
    """Serves a `Service` on one address. Runs on any asyncio loop; uvloop makes few streams three times cheaper."""

    def __init__(self, service: Service, limits: TransportLimits | None = None, tls: TlsFiles | None = None) -> None:
        """`tls`: for a TCP address; a Unix socket is not encrypted."""
        self._service = service
        self._limits = limits or TransportLimits()
        self._tls = tls
        self._config = configuration(self._limits)
        self._connections: set[Ngh2Connection] = set()
        self._all_lost = asyncio.Event()
        self._listener: asyncio.Server | None = None
        self._socket_file: SocketFile | None = None
        self._stopping = False
        self.address = ""

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def open_calls(self) -> int:
        """Open calls, over all connections."""
        return sum(connection.calls for connection in self._connections)

    async def start(self, listen: str) -> None:
        """Listen on `unix:/path` or `host:port`; then `address` tells where, with the real port. Raises ListenError."""
        where = parse_listen(listen)
        loop = asyncio.get_running_loop()
        if isinstance(where, UnixAddress):
            bound = bind_unix(where.path)
            self._socket_file = SocketFile.of(where.path)
            self._listener = await loop.create_unix_server(self._connection, sock=bound, backlog=_BACKLOG)
            self.address = f"unix:{where.path}"
            return
        limits = self._limits
        secure: dict[str, Any] = {}
        if self._tls is not None:
            secure = {
                "ssl": Certificates(self._tls).server_context(),
                "ssl_handshake_timeout": limits.handshake_timeout_s,
                "ssl_shutdown_timeout": limits.close_timeout_s,
            }
        try:
            self._listener = await loop.create_server(
                self._connection, where.host, where.port, backlog=_BACKLOG, **secure
            )
        except OSError as error:
            raise ListenError(f"{where}: {error.strerror or error}") from error
        port = self._listener.sockets[0].getsockname()[1]
        self.address = str(type(where)(where.host, port))

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let the open ones run for `grace_s`, reset what is left. Then every handler was closed.

        May be called again while it runs, with a shorter grace.
        """
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        if self._socket_file is not None:
            self._socket_file.remove()
            self._socket_file = None  # a successor's file may get the same inode number
        for connection in list(self._connections):
            connection.drain()
        try:
            await asyncio.wait_for(self._wait_all_lost(), grace_s)
        except TimeoutError:
            open_calls = sum(connection.calls for connection in self._connections)
            if open_calls:
                _log.info("stop: %d calls still open after %g s are reset", open_calls, grace_s)
        finally:
            # Also when this coroutine is cancelled: nothing is left open.
            for connection in list(self._connections):
                connection.terminate()
        await self._wait_all_lost()

    def abort(self) -> None:
        """Close the listener and cut every connection, as a crash would. `stop` afterwards waits for the rest."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.abort()

    async def _wait_all_lost(self) -> None:
        while self._connections:
            self._all_lost.clear()
            await self._all_lost.wait()

    def _connection(self) -> Ngh2Connection:
        return Ngh2Connection(self._service, self._limits, self._config, opened=self._on_opened, lost=self._on_lost)

    def _on_opened(self, connection: Ngh2Connection) -> None:
        self._connections.add(connection)
        if self._stopping:
            connection.abort()  # accepted by the kernel before the listener closed

    def _on_lost(self, connection: Ngh2Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_lost.set()
