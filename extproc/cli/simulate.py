"""`extproc simulate`: simulated engines."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def simulate(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS]…", help="See extproc simulate --help.")
    ] = None,
) -> None:
    """Run simulated engines that speak vLLM's gRPC protocol, without a GPU or a model.

    Example, then `extproc up --worker-urls grpc://127.0.0.1:50051`:

        extproc simulate --listen 127.0.0.1:50051

    `extproc simulate --help` names all options.
    """
    from extproc.simulator.__main__ import main

    sys.exit(main(arguments or []))
