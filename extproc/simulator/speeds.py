"""How fast each engine of a fleet is: known to the engines alone, so that routing has to find it out."""

from __future__ import annotations

import random


def spread_speeds(count: int, spread: float, seed: int) -> list[float]:
    """Speeds from 1 - spread to 1 + spread in even steps, in an order that the seed decides.

    Their mean is 1 whatever the seed, so a fleet's capacity is that of as many nominal engines.
    """
    if count == 1:
        return [1.0]
    speeds = [1.0 + spread * (2.0 * number / (count - 1) - 1.0) for number in range(count)]
    random.Random(seed).shuffle(speeds)  # noqa: S311  # no secret
    return speeds
