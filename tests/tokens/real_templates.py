"""Chat templates of real models, out of the wheel of `trl`, which carries them: fetched once, kept below build/."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

_PACKAGE, _VERSION = "trl", "1.16.0"
_FOLDER = Path(__file__).parents[2] / "build" / "packages"


def real_templates() -> dict[str, str]:
    """By name; those as their models publish them, not the ones adapted for training."""
    return {
        Path(name).stem: text
        for name, text in _members("trl/chat_templates/", ".jinja").items()
        if not name.endswith("_training.jinja")
    }


def _members(prefix: str, suffix: str) -> dict[str, str]:
    with zipfile.ZipFile(_wheel()) as bundle:
        return {
            name: bundle.read(name).decode()
            for name in sorted(bundle.namelist())
            if name.startswith(prefix) and name.endswith(suffix)
        }


def _wheel() -> Path:
    found = list(_FOLDER.glob(f"{_PACKAGE}-{_VERSION}-*.whl"))
    if not found:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        subprocess.run([*pip, "--dest", str(_FOLDER), f"{_PACKAGE}=={_VERSION}"], check=True, timeout=120)
        found = list(_FOLDER.glob(f"{_PACKAGE}-{_VERSION}-*.whl"))
    return found[0]
