"""Vectors of prompts that mean nothing, but differ where the prompts do."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence


def vector(ids: Sequence[int], dimensions: int) -> list[float]:
    """Of length 1, the same for the same ids."""
    chance = random.Random(array("I", ids).tobytes())  # noqa: S311  # no secret
    values = [chance.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5
    return [value / length for value in values]
