"""The command `extproc`. Each command has a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from extproc.cli.check import check
from extproc.cli.demo import demo
from extproc.cli.envoy_config import envoy_config
from extproc.cli.errors import Commands
from extproc.cli.many_values import ManyValuesCommand
from extproc.cli.serve import serve
from extproc.cli.simulate import simulate
from extproc.cli.up import up

app = typer.Typer(
    name="extproc",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from extproc import __version__

        typer.echo(f"llm-extproc {__version__}")
        raise typer.Exit


@app.callback()
def extproc(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """An Envoy external processor that turns an Envoy into an LLM gateway.

    Clients speak OpenAI's API to Envoy. The processor renders the chat template, tokenizes, chooses a worker and sends
    the engine a ready gRPC request; Envoy does everything else.

    To look around: `extproc demo`. With running engines: `extproc up --worker-urls grpc://HOST:PORT …`. For production:
    a configuration file, `extproc check`, `extproc envoy-config` and `extproc serve`.

    Exit status of every command: 0 when all went well, 1 after a message about what went wrong, 2 for a mistake in the
    command line.
    """


app.command()(serve)
app.command()(check)
app.command()(envoy_config)
app.command(cls=ManyValuesCommand)(up)
app.command()(demo)
app.command(add_help_option=False, context_settings={"ignore_unknown_options": True})(simulate)

if __name__ == "__main__":
    app()
