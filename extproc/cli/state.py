"""The folder in which `demo` and `up` keep the configuration that they wrote, sockets and logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from extproc.cli.discover import FoundPool
from extproc.cli.errors import CommandError
from extproc.config.address import HostPort


@contextmanager
def state_folder(chosen: Path | None) -> Iterator[Path]:
    """The chosen folder, made if need be and kept; or a temporary one, removed at the end. `logs` is in it."""
    if chosen is not None:
        try:
            (chosen / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"the state folder {chosen} cannot be made: {error.strerror}") from error
        yield chosen.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="extproc-"))
    try:
        (folder / "logs").mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def gateway_settings(
    pools: Sequence[FoundPool],
    *,
    policy: str,
    listen: HostPort,
    admin: HostPort,
    metrics: HostPort,
    debug_clients: Sequence[str] = (),
    worker_names: Mapping[HostPort, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The configuration file's content for pools that were found. Paths are relative to the file.

    Workers without an entry in `worker_names` are called by their addresses.
    """

    def worker(address: HostPort) -> str | dict[str, str]:
        name = worker_names.get(address)
        return {"address": str(address), "name": name} if name else str(address)

    settings: dict[str, Any] = {
        "listen": {
            "http": str(listen),
            "admin": str(admin),
            "processor": ["unix:processor.sock"],
            "metrics": str(metrics),
        },
        "envoy": {"directory": "envoy"},
        "pools": [
            {
                "name": pool.name,
                "engine": pool.engine,
                "models": [{"name": pool.model}],
                "workers": [worker(address) for address in pool.workers],
                "tokenizer": "worker",
                "policy": policy,
            }
            for pool in pools
        ],
    }
    settings["log"] = {"format": "console"}
    if debug_clients:
        settings["debug"] = {"clients": list(debug_clients)}
    return settings


def write_settings(folder: Path, settings: dict[str, Any], command: str) -> Path:
    """Write the configuration file. `command` is named in it as its origin."""
    file = folder / "config.yaml"
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    file.write_text(f"# Written by `{command}`. `extproc serve --config {file.name}` takes it as it is.\n{text}")
    return file
