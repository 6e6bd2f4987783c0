"""What `extproc up` does, from worker addresses to a gateway that serves until it is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from extproc.cli.discover import FoundPool, discover
from extproc.cli.errors import CommandError
from extproc.cli.ports import free_ports, is_free
from extproc.cli.processes import Processes, run
from extproc.cli.stack import require_envoy, start_gateway
from extproc.cli.state import gateway_settings, state_folder, write_settings
from extproc.config.address import HostPort


def run_gateway(
    workers: Sequence[HostPort],
    policy: str,
    listen: HostPort,
    envoy: Path | None,
    state_dir: Path | None,
    wait_s: float,
) -> None:
    """Serve until a signal; returns then. Raises CommandError."""
    console = Console(stderr=True)
    binary = require_envoy(envoy)
    if not is_free(listen.host, listen.port):
        raise CommandError(f"{listen} is in use; choose another address with --host and --port")

    with state_folder(state_dir) as folder:

        async def work(processes: Processes) -> None:
            many = len(workers) > 1
            console.print(
                f"asking {len(workers)} workers what they serve" if many else "asking the worker what it serves"
            )
            pools = await discover(workers, wait_s)
            _print_pools(console, pools)
            admin, metrics = (HostPort("127.0.0.1", port) for port in free_ports("127.0.0.1", 2))
            settings = gateway_settings(pools, policy=policy, listen=listen, admin=admin, metrics=metrics)
            config_file = write_settings(folder, settings, "extproc up")
            await start_gateway(processes, config_file, binary)
            console.print(f"state in {escape(str(folder))}", soft_wrap=True)
            console.print(f"serving at [bold]http://{escape(str(listen))}/v1[/], Ctrl-C to stop", soft_wrap=True)
            raise CommandError(await processes.first_end())

        try:
            run(work, folder / "logs", logs_stay=state_dir is not None)
        except KeyboardInterrupt:
            console.print("stopped")


def _print_pools(console: Console, pools: Sequence[FoundPool]) -> None:
    for pool in pools:
        addresses = ", ".join(str(address) for address in pool.workers)
        console.print(f"model [bold]{escape(pool.model)}[/]: {escape(addresses)}", soft_wrap=True)
