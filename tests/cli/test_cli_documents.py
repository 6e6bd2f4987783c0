"""What the README and the architecture document name is really there."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extproc.cli.main import app
from extproc.config.load import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_readmes_configuration_can_be_used(tmp_path: Path) -> None:
    (block,) = re.findall(r"^( *)```yaml\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)
    file = tmp_path / "gateway.yaml"
    file.write_text(textwrap.dedent(block[1]))
    assert [pool.name for pool in load(file).pools] == ["llama-70b"]


@pytest.mark.parametrize("words", sorted(set(re.findall(r"extproc ((?:[a-z]+(?:-[a-z]+)*)(?: --[a-z-]+)*)", README))))
def test_the_readmes_commands_and_their_options_exist(words: str) -> None:
    command, *options = shlex.split(words)
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for option in options:
        assert option in result.output


@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md"])
def test_links_lead_to_files(document: str) -> None:
    text = (ROOT / document).read_text()
    for link in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in link:
            assert (ROOT / document).parent.joinpath(link).exists(), link


def test_the_architecture_names_files_that_exist() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", ARCHITECTURE))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / "extproc" / name).is_file()] == []


def test_the_architecture_names_every_room() -> None:
    rooms = {path.parent.name for path in (ROOT / "extproc").glob("*/__init__.py")}
    table = ARCHITECTURE.partition("| room |")[2].partition("## ")[0]
    assert rooms == set(re.findall(r"`([a-z]+)/`", table))
