"""The temporary folder of `demo` and `up` goes with its command, or with the next one."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from extproc.cli.state import state_folder

OWNER = """
import time
from extproc.cli.state import state_folder
with state_folder(None) as folder:
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # asks the environment anew
    return tmp_path


def test_it_is_gone_afterwards(temporary: Path) -> None:
    with state_folder(None) as folder:
        assert folder.parent == temporary
        assert (folder / "logs").is_dir()
    assert list(temporary.iterdir()) == []


def test_a_chosen_folder_stays(temporary: Path) -> None:
    with state_folder(temporary / "chosen") as folder:
        pass
    assert (folder / "logs").is_dir()


def test_the_folder_of_a_killed_command_is_removed_by_the_next_and_that_of_a_running_one_is_not() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout
        theirs = Path(owner.stdout.readline().strip())
        with state_folder(None):
            assert theirs.is_dir()
        owner.kill()
        owner.wait()
        with state_folder(None):
            assert not theirs.exists()
    finally:
        owner.kill()
        owner.communicate()


def test_folders_that_are_not_ours_stay(temporary: Path) -> None:
    for name in ("extproc-abcdefgh", "extproc-notes", "other"):
        (temporary / name).mkdir()
    (temporary / "extproc-notes" / "owner.lock").touch()  # not a name that is made for a command
    with state_folder(None):
        pass
    assert sorted(path.name for path in temporary.iterdir()) == ["extproc-abcdefgh", "extproc-notes", "other"]
