"""Figures of the rows, as a table for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gateway.rows import GRPCIO_ROW, NGH2_CHEAPER_BY, NGH2_ROW, Row

_COLUMNS = ("ours", "envoy", "processor", "smg", "envoy_smg")
CACHES = "_caches"
"""Ends the names of columns that are another setting of the same thing; of both, the cheaper one counts."""
_MEASURED = (*_COLUMNS, "smg" + CACHES, "envoy_smg" + CACHES)


@dataclass(slots=True)
class Figures:
    """What was measured for one row: CPU in microseconds by column, one value for each run."""

    row: Row
    values: dict[str, list[float]] = field(default_factory=lambda: {column: [] for column in _MEASURED})
    prompt_tokens_agree: bool = True
    prompt_tokens: float = 0.0  # mean
    distinct_words: int = 0

    def median(self, column: str) -> float | None:
        """In the better setting, where it was measured in two; None where nothing was measured."""
        medians = [median(values) for name in (column, column + CACHES) if (values := self.values.get(name))]
        return min(medians, default=None)

    def ratio(self, column: str) -> float | None:
        """Ours to another's; None where one of them is missing, or the set-ups disagree about the prompts."""
        ours, theirs = self.median("ours"), self.median(column)
        return ours / theirs if ours is not None and theirs and self.prompt_tokens_agree else None

    @property
    def missed(self) -> list[str]:
        """What the row is short of, in words."""
        row = self.row
        missed = [] if self.prompt_tokens_agree else ["prompt_tokens differ"]
        if self.distinct_words < row.min_distinct_words:
            missed.append(f"only {self.distinct_words} distinct words")
        for column, bar, name in (("smg", row.bar_smg, "SMG"), ("envoy_smg", row.bar_envoy_smg, "Envoy + SMG")):
            ratio = self.ratio(column)
            if bar is not None and ratio is not None and ratio > bar:
                missed.append(f"{ratio:.2f} > {bar:.2f} of {name}")
        return missed


def table(all_figures: Sequence[Figures]) -> str:
    """One line for each row."""
    head = ("row", "unit", "ours", "Envoy", "processor", "SMG", "Envoy+SMG", "/SMG", "/Envoy+SMG", "tokens", "bars")
    lines = [head, *(_line(figures) for figures in all_figures)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    text = [
        "  ".join(
            cell.ljust(width) if at in (0, 1, 10) else cell.rjust(width) for at, (cell, width) in enumerate(pairs)
        )
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]
    cheaper = transports_ratio(all_figures)
    if cheaper is not None:
        verdict = "met" if cheaper >= NGH2_CHEAPER_BY else f"MISSED: at least {NGH2_CHEAPER_BY:g}"
        text.append(f"ngh2 is {cheaper:.1f} times cheaper than grpcio per streamed token ({verdict})")
    return "\n".join(line.rstrip() for line in text)


def transports_ratio(all_figures: Sequence[Figures]) -> float | None:
    """How many times cheaper ngh2 is, where both transports were measured."""
    by_name = {figures.row.name: figures.median("ours") for figures in all_figures}
    ngh2, grpcio = by_name.get(NGH2_ROW), by_name.get(GRPCIO_ROW)
    return grpcio / ngh2 if ngh2 and grpcio else None


def write_json(all_figures: Sequence[Figures], file: Path) -> None:
    """One object for each row; figures in microseconds of CPU, `values` by run."""
    rows: list[dict[str, Any]] = [
        {
            "name": figures.row.name,
            "unit": figures.row.unit,
            "ours": figures.median("ours"),
            "smg": figures.median("smg"),
            "envoy_smg": figures.median("envoy_smg"),
            "ratio_smg": figures.ratio("smg"),
            "ratio_envoy_smg": figures.ratio("envoy_smg"),
            "runs": len(figures.values["ours"]),
            "ours_envoy": figures.median("envoy"),
            "ours_processor": figures.median("processor"),
            "prompt_tokens": figures.prompt_tokens,
            "prompt_tokens_agree": figures.prompt_tokens_agree,
            "distinct_words": figures.distinct_words,
            "values": {column: values for column, values in figures.values.items() if values},
            "missed": figures.missed,
        }
        for figures in all_figures
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(rows, indent=1) + "\n")


def _line(figures: Figures) -> tuple[str, ...]:
    def number(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    missed = figures.missed
    row = figures.row
    has_bars = row.bar_smg is not None or row.bar_envoy_smg is not None
    return (
        row.name,
        row.unit,
        *(number(figures.median(column), 1) for column in _COLUMNS),
        number(figures.ratio("smg"), 2),
        number(figures.ratio("envoy_smg"), 2),
        f"{figures.prompt_tokens:.0f}{'' if figures.prompt_tokens_agree else ' differ'}",
        f"MISSED: {', '.join(missed)}" if missed else "met" if has_bars else "",
    )
