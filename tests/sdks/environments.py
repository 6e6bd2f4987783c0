"""Environments of SDKs: of each SDK several majors in Python, and the newest ones in JavaScript.

    python tests/sdks/environments.py

They are made under .venvs/ from the package indexes, once for each set of versions.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tarfile
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
OWN_TESTS: dict[str, str] = {"openai": "3.57.0", "anthropic": "2.14.0"}
"""SDKs whose source distributions hold tests against any server."""
NEEDED_BY_OWN_TESTS = (
    "pytest>=9",
    "pytest-asyncio>=1.4",
    "pytest-xdist",
    "inline-snapshot",
    "rich",
    "http-snapshot[httpx]==0.1.9",
    "respx",
    "dirty-equals",
    "time-machine",
)
JAVASCRIPT = HERE / "js"
NODE_MAJOR = 20


def main() -> None:
    """Make all."""
    for name in PYTHON:
        print(python(name))
    print(own_tests())
    print(javascript() or f"no JavaScript: {missing_node()}")


def python(name: str) -> Path:
    """The interpreter of an environment, which is made where it is missing or of other versions."""
    folder = ENVIRONMENTS / f"sdks-{name}"
    _once(folder, " ".join(PYTHON[name]), lambda: _install(folder, *PYTHON[name]))
    return folder / "bin" / "python"


def own_tests() -> Path:
    """An environment in which SDKs run their own tests, with their sources in a folder each: `openai`, `anthropic`."""
    folder = ENVIRONMENTS / "sdks-own-tests"
    packages = [f"{name}[aiohttp]=={version}" for name, version in OWN_TESTS.items()]

    def make() -> None:
        _install(folder, *packages, *NEEDED_BY_OWN_TESTS)
        for name, version in OWN_TESTS.items():
            # pip asks the build system for metadata, which is why this takes longer than the download.
            sources = folder / "sources"
            _pip("download", "--no-deps", "--no-binary", name, "--dest", str(sources), f"{name}=={version}")
            with tarfile.open(sources / f"{name}-{version}.tar.gz") as archive:
                archive.extractall(sources, filter="data")
            (sources / f"{name}-{version}").rename(folder / name)

    _once(folder, " ".join([*packages, *NEEDED_BY_OWN_TESTS]), make)
    return folder


def _install(folder: Path, *packages: str) -> None:
    """An environment without a pip of its own, which would take half the time: the one that runs this installs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    _pip("--python", str(folder / "bin" / "python"), "install", *packages)


def _pip(*arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True, timeout=600)


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
