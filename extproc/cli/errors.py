"""What a command says when it cannot go on."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


class CommandError(Exception):
    """One message for the person at the keyboard, which says what to change. The command exits with 1."""


class Commands(TyperGroup):
    """The commands, whose errors become one message on standard error instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Exit status 1 after a CommandError, 130 after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except CommandError as error:
            typer.secho("Error: ", fg=typer.colors.RED, err=True, nl=False)
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
