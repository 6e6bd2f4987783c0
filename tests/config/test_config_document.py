"""The operators' document is the schema's."""

from __future__ import annotations

from pathlib import Path

from extproc.config.document import render
from extproc.config.schema import Config, Section

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_committed_document_is_current() -> None:
    """If not: python -m extproc.config.document > docs/configuration.md"""
    assert DOCUMENT.read_text() == render()


def test_every_key_is_described() -> None:
    sections = [Config, *Section.__subclasses__()]
    assert len(sections) > 10
    for section in sections:
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
            assert field.description.endswith("."), f"{section.__name__}.{name}"
