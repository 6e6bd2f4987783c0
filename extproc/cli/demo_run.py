"""What `extproc demo` does: engines, processor and Envoy on this machine, a tour, and how to go on from there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from extproc.cli.chat import ChatClient
from extproc.cli.demo import DEFAULT_PORT
from extproc.cli.discover import discover
from extproc.cli.errors import CommandError
from extproc.cli.ports import free_ports, is_free
from extproc.cli.processes import Child, Processes, run
from extproc.cli.stack import require_envoy, start_gateway
from extproc.cli.state import gateway_settings, state_folder, write_settings
from extproc.cli.tour import Tour
from extproc.config.address import HostPort, parse_worker
from extproc.envoyconfig.binary import EnvoyBinary

HOST = "127.0.0.1"
ENGINES = 4
POLICY = "ttft"
_ENGINES_COMMAND = [sys.executable, "-m", "extproc.simulator", "--count", str(ENGINES), "--answers", "natural"]


def run_demo(once: bool, port: int | None, envoy: Path | None) -> None:
    """The whole demo. Raises CommandError if a part does not start or ends, or a request of the tour failed."""
    console = Console()
    binary = require_envoy(envoy)
    listen = HostPort(HOST, _choose_port(console, port))
    shown = False
    with state_folder(None) as folder:

        async def work(processes: Processes) -> None:
            nonlocal shown
            model = await _start(console, processes, folder, listen, binary)
            client = ChatClient(listen.host, listen.port, model)
            tour = Tour(console, client, POLICY)
            await tour.run()
            if once:
                _report(tour.failures)
                return
            _print_how_to_go_on(console, listen, model, tour.failures)
            shown = True
            raise CommandError(await processes.first_end())

        try:
            run(work, folder / "logs")
        except KeyboardInterrupt:
            if not shown:
                raise
        console.print("Everything has ended.")


def _choose_port(console: Console, wanted: int | None) -> int:
    port = wanted or DEFAULT_PORT
    if is_free(HOST, port):
        return port
    if wanted:
        raise CommandError(f"port {wanted} is in use; choose another one with --port")
    (free,) = free_ports(HOST, 1)
    console.print(f"Port {port} is in use, so this is port {free}.")
    return free


async def _start(console: Console, processes: Processes, folder: Path, listen: HostPort, binary: EnvoyBinary) -> str:
    """Start all parts. Returns the model's name."""
    workers: list[HostPort] = []

    async def announced(child: Child) -> None:
        while len(workers) < ENGINES:
            workers.append(parse_worker(json.loads(await child.next_line())["address"]))

    with console.status(f"Starting {ENGINES} simulated vLLM engines …"):
        await processes.start("engines", _ENGINES_COMMAND, ready=announced, announces=True)
    with console.status("Asking the engines what they serve …"):
        (pool,) = await discover(workers, wait_s=10.0)
    admin, metrics = (HostPort(HOST, port) for port in free_ports(HOST, 2))
    settings = gateway_settings(
        [pool],
        policy=POLICY,
        listen=listen,
        admin=admin,
        metrics=metrics,
        debug_clients=["127.0.0.0/8"],
        worker_names={address: f"engine-{number}" for number, address in enumerate(workers, start=1)},
    )
    config_file = write_settings(folder, settings, "extproc demo")
    with console.status("Starting the processor and Envoy …"):
        await start_gateway(processes, config_file, binary)
    console.print(f"{ENGINES} engines with the model [bold]{escape(pool.model)}[/]: simulated, with real timing.")
    console.print(f"Envoy at [bold]http://{listen}[/], logs in {folder / 'logs'}.", soft_wrap=True)
    return pool.model


def _report(failures: list[str]) -> None:
    if failures:
        raise CommandError("the tour failed.\n" + "\n".join(failures))


def _print_how_to_go_on(console: Console, listen: HostPort, model: str, failures: list[str]) -> None:
    base = f"http://{listen}/v1"
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    console.print()
    console.rule("[bold]It is yours", align="left")
    console.print(f"Base URL: [bold]{base}[/]\n", soft_wrap=True)
    # Plain, so that it can be copied from any terminal.
    for line in (
        f"curl -N {base}/chat/completions -H 'content-type: application/json' -d '{body}'",
        "",
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{base}", api_key="none")',
        f'print(client.chat.completions.create(model="{model}", '
        'messages=[{"role": "user", "content": "Hello"}]).choices[0].message.content)',
    ):
        typer.echo(line)
    console.print()
    for failure in failures:
        console.print(f"[red]This request of the tour failed:[/] {escape(failure)}")
    console.print("Ctrl-C ends everything.")
