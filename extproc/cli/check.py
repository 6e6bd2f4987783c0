"""`extproc check`: reads a configuration file and names every mistake in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extproc.cli.errors import CommandError

if TYPE_CHECKING:
    from extproc.config.schema import Config

ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file, YAML.")]


def check(config: ConfigFile) -> None:
    """Read a configuration file and name every mistake: its line, and what to write instead.

    Nothing is started and no worker is asked. Example:

        extproc check --config gateway.yaml

    Exit status: 0 if the file can be used, 1 if not.
    """
    loaded = load_config(config)
    pools = ", ".join(f"{pool.name} ({_count(len(pool.workers), 'worker')})" for pool in loaded.pools)
    typer.echo(f"{config}: good. {_count(len(loaded.pools), 'pool')}: {pools}.")


def load_config(file: Path) -> Config:
    """The configuration in `file`. Raises CommandError with all mistakes."""
    from extproc.config.load import ConfigError, load

    try:
        return load(file)
    except ConfigError as error:
        raise CommandError(f"the configuration cannot be used.\n{error}") from None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
