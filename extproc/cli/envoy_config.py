"""`extproc envoy-config`: the Envoy configuration that goes with a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extproc.cli.check import ConfigFile, load_config
from extproc.cli.errors import CommandError
from extproc.cli.processes_option import Processes, with_processes

if TYPE_CHECKING:
    from extproc.config.schema import Config


def envoy_config(
    config: ConfigFile,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write the files into this folder, where Envoy will look for them. Without it they are printed, and "
            "name each other in `envoy.directory`.",
        ),
    ] = None,
    processes: Processes = None,
) -> None:
    """Write or print Envoy's configuration: the listener with the processor, and a cluster for each pool.

    The files are bootstrap.yaml, cds.yaml and eds/POOL.yaml. Envoy watches the last two kinds: written anew, they are
    in use within half a second. Host names of workers are looked up, since Envoy picks workers by IP address.

    Examples:

        extproc envoy-config --config gateway.yaml

        extproc envoy-config --config gateway.yaml --output run/envoy

        envoy --config-path run/envoy/bootstrap.yaml

    Exit status: 0 if all is written, 1 if not.
    """
    loaded = with_addresses(with_processes(load_config(config), processes))
    from extproc.envoyconfig.files import build, write

    if output is None:
        for name, content in build(loaded).contents.items():
            typer.echo(f"---\n# {name}\n{content}", nl=False)
        return
    folder = output.absolute()
    files = build(in_directory(loaded, folder))
    try:
        written = write(files, folder)
    except OSError as error:
        raise CommandError(f"the files cannot be written to {folder}: {error.strerror or error}") from error
    for name in files.contents:
        typer.echo(f"{folder / name}{'' if folder / name in written else ' (unchanged)'}")
    if folder != Path(loaded.envoy.directory):
        typer.echo(
            f"note: the configuration's envoy.directory is {loaded.envoy.directory}; set it to {folder}", err=True
        )


def with_addresses(config: Config) -> Config:
    """The configuration with IP addresses for all workers. Raises CommandError."""
    from extproc.config.resolve import ResolveError, resolve_workers

    try:
        return resolve_workers(config)
    except ResolveError as error:
        raise CommandError(str(error)) from None


def in_directory(config: Config, folder: Path) -> Config:
    """The configuration with another folder for Envoy's files."""
    return config.model_copy(update={"envoy": config.envoy.model_copy(update={"directory": folder})})
