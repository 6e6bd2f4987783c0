"""`extproc serve`: the processor itself."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Annotated

import typer

from extproc.cli.check import ConfigFile, load_config
from extproc.cli.errors import CommandError
from extproc.cli.processes_option import Processes, warn_of_other_sockets, with_processes

if TYPE_CHECKING:
    from extproc.config.schema import Config

SETTLE_S = 2.0


class Transport(enum.StrEnum):
    """What serves gRPC."""

    NGH2 = "ngh2"
    GRPCIO = "grpcio"


def serve(
    config: ConfigFile,
    processes: Processes = None,
    transport: Annotated[
        Transport,
        typer.Option(metavar="NAME", help="What serves gRPC: ngh2 is fast, grpcio the reference and the fallback."),
    ] = Transport.NGH2,
    settle_s: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            help="After SIGTERM: seconds in which new requests are still taken while Envoy's health check fails.",
        ),
    ] = SETTLE_S,
) -> None:
    """Run the processor until SIGTERM or Ctrl-C, as one process or as several under a supervisor.

    The first signal stops it in order: its health service says so, Envoy takes other processors, running exchanges go
    on for `limits.drain_s` at most. A second signal cuts that short.

    Examples:

        extproc serve --config gateway.yaml

        extproc serve --config gateway.yaml --processes 4

    Exit status: 0 after a signal, 1 if it cannot serve.
    """
    loaded = with_processes(load_config(config), processes)
    from extproc.cli.logs import configure_logs

    configure_logs(loaded.log.level, loaded.log.format)
    warn_of_other_sockets(loaded)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(loaded, transport, settle_s))


async def _serve(config: Config, transport: Transport, settle_s: float) -> None:
    from extproc.config.resolve import ResolveError
    from extproc.supervisor.process import serve_alone
    from extproc.supervisor.supervisor import StartError, serve_processes
    from extproc.transport.listening import ListenError

    try:
        if config.processes == 1:
            await serve_alone(config, transport.value, settle_s)
        else:
            await serve_processes(config, transport.value, settle_s)
    except (ResolveError, ListenError, StartError, OSError) as error:
        raise CommandError(error.strerror or str(error) if isinstance(error, OSError) else str(error)) from None
