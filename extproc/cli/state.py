"""The folder in which `demo` and `up` keep the configuration that they wrote, sockets and logs."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import stat
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

_PREFIX = "extproc-"
_LOCK = "owner.lock"
_MOST_REMOVED = 100


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
    parent = Path(tempfile.gettempdir())
    _remove_left_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with _owned(folder):
            (folder / "logs").mkdir()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Hold a lock in the folder, which the kernel takes back when this process ends, however it ends."""
    unlocked = folder / f"{_LOCK}.new"
    with unlocked.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(folder / _LOCK)  # only now: nobody ever sees it unlocked while we live
        yield


def _remove_left_folders(parent: Path) -> None:
    """Remove temporary folders of commands that were killed: of this user, with a lock that nobody holds."""
    candidates = (path for path in parent.glob(f"{_PREFIX}????????") if (path / _LOCK).is_file())
    for folder in itertools.islice(candidates, _MOST_REMOVED):
        try:
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            with os.fdopen(os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW), "wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or just removed by another command
            continue


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
