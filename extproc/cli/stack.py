"""A processor and the Envoy in front of it, started for `demo` and `up` from one configuration file."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sys
from collections.abc import Callable
from pathlib import Path

from extproc.cli.check import load_config
from extproc.cli.envoy_config import with_addresses
from extproc.cli.errors import CommandError
from extproc.cli.processes import Child, Processes
from extproc.config.address import Address, HostPort
from extproc.envoyconfig.binary import BinaryError, EnvoyBinary, find_envoy
from extproc.envoyconfig.files import BOOTSTRAP, build, write

_POLL_S = 0.05
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}
PROCESSOR_START_S = 120.0
"""Loading and comparing tokenizers takes seconds, fetching them from workers more."""


def require_envoy(path: Path | None) -> EnvoyBinary:
    """The Envoy to start. Raises CommandError."""
    try:
        return find_envoy(path)
    except BinaryError as error:
        raise CommandError(str(error)) from None


async def start_gateway(processes: Processes, config_file: Path, binary: EnvoyBinary) -> None:
    """Start the processor, then Envoy with the configuration that goes with the file. Raises StartError."""
    config = with_addresses(load_config(config_file))
    directory = Path(config.envoy.directory)
    write(build(config), directory)
    await start_processor(processes, config_file, config.sockets_of(0)[0])
    await start_envoy(
        processes,
        binary.path,
        directory / BOOTSTRAP,
        config.listen.admin,
        config.envoy.concurrency,
        config.limits.drain_s,
    )


async def start_processor(processes: Processes, config_file: Path, address: Address) -> Child:
    """Start `extproc serve` and wait until its health service, at `address`, says that it serves."""
    return await processes.start(
        "processor",
        # Envoy has ended when the processor is told to: there is nobody who would have to notice first.
        [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(config_file), "--settle-s", "0"],
        ready=lambda _: processor_serves(address),
        timeout_s=PROCESSOR_START_S,
        grace_s=40.0,
    )


async def start_envoy(
    processes: Processes,
    binary: Path,
    bootstrap: Path,
    admin: HostPort,
    concurrency: int | None,
    drain_s: float,
    name: str = "Envoy",
) -> Child:
    """Start Envoy and wait until its admin interface says that it is ready. It drains before it stops."""
    command = [str(binary), "--config-path", str(bootstrap), "--disable-hot-restart", "--log-level", "warning"]
    if concurrency:
        command += ["--concurrency", str(concurrency)]
    return await processes.start(
        name,
        command,
        ready=lambda _: _poll(lambda: _admin(admin, "GET", "/ready")[0] == 200),
        before_stop=lambda: _drain_envoy(admin, drain_s),
        grace_s=drain_s + 5.0,
    )


async def processor_serves(address: Address) -> None:
    """Wait until the processor's gRPC health service answers SERVING for all pools."""
    import grpc
    import grpc.aio

    from extproc.gateway.processor import ALL_POOLS

    options = [
        ("grpc.enable_http_proxy", 0),
        # Its socket appears when it has loaded its tokenizers; grpcio's own waits grow to minutes.
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    request = b"\x0a" + bytes([len(ALL_POOLS)]) + ALL_POOLS.encode()  # HealthCheckRequest{service: ALL_POOLS}
    async with grpc.aio.insecure_channel(str(address), options=options) as channel:
        check = channel.unary_unary(_HEALTH_CHECK, request_serializer=bytes, response_deserializer=bytes)
        while True:
            with contextlib.suppress(grpc.RpcError):
                if await check(request, wait_for_ready=True) == _SERVING:
                    return
            await asyncio.sleep(_POLL_S)


async def _drain_envoy(admin: HostPort, drain_s: float) -> None:
    """Take no new connections, and wait for what is running, at most `drain_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await asyncio.to_thread(_admin, admin, "POST", "/drain_listeners")
            await _poll(lambda: _running_requests(admin) == 0)


def _running_requests(admin: HostPort) -> int:
    """Requests in flight over all HTTP listeners but the admin interface."""
    status, text = _admin(admin, "GET", "/stats?usedonly&filter=^http\\..*\\.downstream_rq_active$")
    if status != 200:
        return 0
    lines = (line.rsplit(": ", 1) for line in text.splitlines() if not line.startswith("http.admin."))
    return sum(int(value) for _, value in lines)


async def _poll(condition: Callable[[], bool]) -> None:
    """Envoy offers no event for this, so it is asked again and again."""
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if await asyncio.to_thread(condition):
                return
        await asyncio.sleep(_POLL_S)


def _admin(admin: HostPort, method: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(admin.host, admin.port, timeout=5.0)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
