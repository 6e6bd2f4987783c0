"""The command `extproc`. Each command has a file of its own."""

from __future__ import annotations

import os
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
    rich_markup_mode=None,  # its tables cut option names on narrow terminals
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

    Clients speak OpenAI's, Anthropic's, Gemini's or Ollama's API to Envoy. The processor renders the chat template,
    tokenizes, chooses a worker and sends the engine a ready gRPC request; Envoy does everything else.

    To look around:

        extproc demo

    With running engines:

        extproc up --worker-urls grpc://HOST:PORT

    For production: a configuration file, and the commands check, envoy-config and serve.

    Exit status of every command: 0 when all went well, 1 after a message about what went wrong, 2 for a mistake in the
    command line, 130 if it was interrupted before its work was done.
    """
    from extproc.supervisor import UNFORKED_GRPC

    os.environ.update(UNFORKED_GRPC)  # read when grpc is imported, by any command and by what it starts


app.command(short_help="Run the processor.")(serve)
app.command(short_help="Name every mistake in a configuration file.")(check)
app.command(short_help="Write or print Envoy's configuration.")(envoy_config)
app.command(cls=ManyValuesCommand, short_help="Start a gateway for running engines.")(up)
app.command(short_help="Show a gateway at work, with simulated engines.")(demo)
app.command(
    short_help="Run simulated engines.", add_help_option=False, context_settings={"ignore_unknown_options": True}
)(simulate)

if __name__ == "__main__":
    app()
