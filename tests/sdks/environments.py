"""Environments of SDKs: of each SDK several majors in Python, and the newest ones in JavaScript.

    python tests/sdks/environments.py

They are made under .venvs/ from the package indexes, once for each set of versions.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".venvs"
PYTHON: dict[str, tuple[str, ...]] = {
    "newest": ("openai==3.57.0", "anthropic==2.14.0", "google-genai==3.6.1", "ollama==0.6.3"),
    "before": ("openai==2.54.0", "anthropic==1.17.0", "google-genai==2.34.0", "ollama==0.5.4"),
    "oldest": ("openai==1.109.1", "anthropic==0.125.0", "google-genai==1.75.0", "ollama==0.4.9"),
}
"""What is installed side by side: majors where the SDK has had several, else minors."""
JAVASCRIPT = HERE / "js"
NODE_MAJOR = 20


def main() -> None:
    """Make all."""
    for name in PYTHON:
        print(python(name))
    print(javascript() or f"no JavaScript: {missing_node()}")


def python(name: str) -> Path:
    """The interpreter of an environment, which is made where it is missing or of other versions."""
    folder = ENVIRONMENTS / f"sdks-{name}"
    interpreter = folder / "bin" / "python"

    def make() -> None:
        # Without a pip of its own, which takes half the time: the one that runs this installs for it.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "-q"]
        subprocess.run([*pip, "--disable-pip-version-check", *PYTHON[name]], check=True, timeout=600)

    _once(folder, " ".join(PYTHON[name]), make)
    return interpreter


def javascript() -> Path | None:
    """A folder with the scripts and their packages beside them; None where node is missing or too old."""
    if missing_node():
        return None
    folder = ENVIRONMENTS / "sdks-js"

    def make() -> None:
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(JAVASCRIPT / name, folder)
        npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(npm, cwd=folder, check=True, timeout=600)

    _once(folder, (JAVASCRIPT / "package-lock.json").read_text(), make)
    for script in JAVASCRIPT.glob("*.mjs"):  # where they find the packages
        shutil.copy(script, folder)
    return folder


def missing_node() -> str | None:
    """Why scripts of JavaScript cannot run here."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return f"node {NODE_MAJOR} or newer and npm are needed (apt-get install nodejs npm)"
    version = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR:
        return f"node {NODE_MAJOR} or newer is needed, found {version}"
    return None


def _once(folder: Path, made_from: str, make: Callable[[], None]) -> None:
    """Make a folder unless it was made of the same; processes that want the same wait for each other."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    with (ENVIRONMENTS / f".lock-{folder.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / "made-from"
        if made.is_file() and made.read_text() == made_from:
            return
        shutil.rmtree(folder, ignore_errors=True)
        make()
        made.write_text(made_from)


if __name__ == "__main__":
    main()
