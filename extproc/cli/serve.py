"""`extproc serve`: the processor itself."""

from __future__ import annotations

import asyncio
import enum
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from extproc.cli.check import ConfigFile, load_config
from extproc.cli.errors import CommandError

if TYPE_CHECKING:
    from extproc.config.schema import Config

SETTLE_S = 2.0


class Transport(enum.StrEnum):
    """What serves gRPC."""

    NGH2 = "ngh2"
    GRPCIO = "grpcio"


def serve(
    config: ConfigFile,
    transport: Annotated[
        Transport, typer.Option(help="What serves gRPC: ngh2 is fast, grpcio the reference and the fallback.")
    ] = Transport.NGH2,
    settle_s: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="After SIGTERM: seconds in which new requests are still taken while Envoy's health check fails.",
        ),
    ] = SETTLE_S,
) -> None:
    """Run the processor until SIGTERM or Ctrl-C.

    The first signal stops it in order: its health service says so, Envoy takes other processors, running exchanges go
    on for `limits.drain_s` at most. A second signal cuts that short.

    Example:

        extproc serve --config gateway.yaml

    Exit status: 0 after a signal, 1 if it cannot serve.
    """
    loaded = load_config(config)
    from extproc.cli.logs import configure_logs

    configure_logs(loaded.log.level, loaded.log.format)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(loaded, transport, settle_s))


async def _serve(config: Config, transport: Transport, settle_s: float) -> None:
    from extproc.config.resolve import ResolveError
    from extproc.gateway.processor import Processor
    from extproc.transport.listening import ListenError

    told_to_stop = asyncio.Event()
    told_to_hurry = asyncio.Event()

    def on_signal() -> None:
        (told_to_hurry if told_to_stop.is_set() else told_to_stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    processor = Processor(config, transport.value)
    try:
        await processor.start()
        await told_to_stop.wait()
        stop = asyncio.create_task(processor.stop(settle_s=settle_s, grace_s=config.limits.drain_s))
        hurry = asyncio.create_task(told_to_hurry.wait())
        await asyncio.wait({stop, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not stop.done():
            stop.cancel()
            await asyncio.wait({stop})
            await processor.stop(settle_s=0.0, grace_s=0.0)
        else:
            stop.result()
    except (ResolveError, ListenError, OSError) as error:
        await processor.stop(settle_s=0.0, grace_s=0.0)
        raise CommandError(str(error)) from None
