"""The same service under grpc.aio: the reference that the tests compare with, and the fallback without ngh2."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc.aio import EOF  # type: ignore[attr-defined]  # missing in the stubs

from extproc.transport.limits import TransportLimits
from extproc.transport.listening import (
    SOCKET_MODE,
    ListenError,
    SocketFile,
    UnixAddress,
    parse_listen,
    prepare_unix_path,
)
from extproc.transport.service import CallHandler, MethodHandler, Service
from extproc.transport.status import Status
from extproc.transport.tls import Certificates, TlsFiles

_log = logging.getLogger(__name__)

_CODES = {code.value[0]: code for code in grpc.StatusCode}

_RESET_NOTICE_S = 0.002
"""How long after an end of the request's messages it may turn out to have been a reset. On a busy loop that may take
longer, and the handler then hears `half_close` before `closed`."""

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class GrpcioServer:
    """Serves a `Service` on one address with grpc.aio."""

    def __init__(self, service: Service, limits: TransportLimits | None = None, tls: TlsFiles | None = None) -> None:
        """`tls`: for a TCP address; a Unix socket is not encrypted."""
        self._service = service
        self._limits = limits or TransportLimits()
        self._tls = tls
        self._socket_file: SocketFile | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    @property
    def connections(self) -> None:
        """grpcio does not tell."""
        return

    @property
    def open_calls(self) -> int:
        """Open calls, over all connections."""
        return len(self._running)

    async def start(self, listen: str) -> None:
        """Listen on `unix:/path` or `host:port`; then `address` tells where, with the real port. Raises ListenError."""
        where = parse_listen(listen)
        limits = self._limits
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.max_concurrent_streams),
                ("grpc.max_metadata_size", limits.max_header_list_bytes),
                ("grpc.so_reuseport", 0),  # a port in use is an error
                ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_s)),
                ("grpc.keepalive_timeout_ms", _milliseconds(limits.keepalive_s)),
                ("grpc.max_connection_idle_ms", _milliseconds(limits.max_idle_s)),
                ("grpc.max_connection_age_ms", _milliseconds(limits.max_age_s)),
                ("grpc.max_connection_age_grace_ms", _milliseconds(limits.max_age_grace_s)),
            ]
        )
        server.add_generic_rpc_handlers((_Methods(self._service, limits, self._running),))
        try:
            if isinstance(where, UnixAddress):
                prepare_unix_path(where.path)
                server.add_insecure_port(f"unix:{where.path}")
                self.address = f"unix:{where.path}"
            else:
                if self._tls is None:
                    port = server.add_insecure_port(str(where))
                else:
                    port = server.add_secure_port(str(where), _credentials(self._tls))
                self.address = str(type(where)(where.host, port))
        except RuntimeError as error:
            raise ListenError(f"{listen}: {error}") from error
        await server.start()
        if isinstance(where, UnixAddress):
            where.path.chmod(SOCKET_MODE)
            self._socket_file = SocketFile.of(where.path)
        self._server = server

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, let the open ones run for `grace_s`, cancel the rest. Then every handler was closed."""
        if self._server is not None:
            await self._server.stop(grace_s)
        if self._running:
            await asyncio.wait(self._running)
        if self._socket_file is not None:
            self._socket_file.remove()
            self._socket_file = None  # a successor's file may get the same inode number


_FOREVER_MS = 2**31 - 1  # grpcio's own word for it


def _milliseconds(seconds: float) -> int:
    return int(min(1000 * seconds, _FOREVER_MS))


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """As `tls.Certificates` has it, but for grpcio's own TLS, which asks at each handshake."""
    certificates = Certificates(files)

    def read() -> grpc.ServerCertificateConfiguration:
        authorities = files.client_ca.read_bytes() if files.client_ca is not None else None
        return grpc.ssl_server_certificate_configuration(
            [(files.key.read_bytes(), files.certificate.read_bytes())], authorities
        )

    current = read()

    def fetch() -> grpc.ServerCertificateConfiguration:
        nonlocal current
        if certificates.refresh():
            current = read()
        return current

    return grpc.dynamic_ssl_server_credentials(current, fetch, files.client_ca is not None)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Every method as a stream in both directions: on the wire, a unary call is one too."""

    def __init__(self, service: Service, limits: TransportLimits, running: set[asyncio.Task[Any]]) -> None:
        self._service = service
        self._limits = limits
        self._running = running

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        path = handler_call_details.method
        open_call = self._service.get(path)
        if open_call is None:
            return None

        async def serve(_: object, context: Context) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                await _serve_call(path, open_call, context, self._limits)
            finally:
                self._running.discard(task)

        return grpc.stream_stream_rpc_method_handler(serve)


class _GrpcioCall:
    """Implements `service.Call`: a queue that the call's coroutine empties."""

    def __init__(self, metadata: list[tuple[bytes, bytes]]) -> None:
        self.metadata = metadata
        self.output: list[bytes] = []
        self.queued_bytes = 0
        self.finished = False
        self.status = 0
        self.details = ""
        self.changed = asyncio.Event()
        self.sent = asyncio.Event()

    def send(self, message: bytes) -> None:
        if not self.finished:
            self.output.append(message)
            self.queued_bytes += len(message)
            self.changed.set()

    def finish(self, status: int = 0, details: str = "") -> None:
        if not self.finished:
            self.finished = True
            self.status = status
            self.details = details
            self.changed.set()


async def _serve_call(path: str, open_call: MethodHandler, context: Context, limits: TransportLimits) -> None:
    call = _GrpcioCall(_metadata(path, context))
    try:
        handler = open_call(call)
    except Exception:
        _fail(path, call)
        await _end(call, context)
        return
    reader = asyncio.create_task(_read(path, call, handler, context, limits))
    try:
        await _write(call, context)
        await _end(call, context)
    finally:
        reader.cancel()
        call.finished = True
        try:
            handler.closed()
        except Exception:
            _log.exception("handler failed in closed()")


async def _read(path: str, call: _GrpcioCall, handler: CallHandler, context: Context, limits: TransportLimits) -> None:
    while not call.finished:
        try:
            message = await context.read()
        except (grpc.RpcError, grpc.aio.BaseError):
            return  # the call is over, which its coroutine hears by itself
        try:
            if message is EOF:
                # grpc.aio reports a reset as this same end first, and cancels the call's coroutine a moment later.
                await asyncio.sleep(_RESET_NOTICE_S)
                handler.half_close()
                return
            handler.message(message)
        except Exception:
            _fail(path, call)
            return
        while call.queued_bytes > limits.stream_queue_high_bytes:
            call.sent.clear()
            await call.sent.wait()


async def _write(call: _GrpcioCall, context: Context) -> None:
    while True:
        await call.changed.wait()
        call.changed.clear()
        output = call.output
        call.output = []
        for message in output:
            await context.write(message)
            call.queued_bytes -= len(message)
            call.sent.set()
        if call.finished and not call.output:
            return


async def _end(call: _GrpcioCall, context: Context) -> None:
    code = _CODES.get(call.status, grpc.StatusCode.UNKNOWN)
    if code is not grpc.StatusCode.OK:
        await context.abort(code, call.details)


def _fail(path: str, call: _GrpcioCall) -> None:
    _log.exception("handler failed: %s", path)
    call.finish(Status.INTERNAL, "internal error")


def _metadata(path: str, context: Context) -> list[tuple[bytes, bytes]]:
    """As HTTP/2 had it, as far as grpc.aio tells: the authority is not known."""
    headers = [(b":method", b"POST"), (b":path", path.encode())]
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, bytes):
            headers.append((name.encode(), base64.b64encode(value).rstrip(b"=") if name.endswith("-bin") else value))
        else:
            headers.append((name.encode(), value.encode()))
    return headers
