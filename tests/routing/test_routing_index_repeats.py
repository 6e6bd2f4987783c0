"""Prompts that come again as the same array are found by where their blocks were: that must never say anything else."""

from __future__ import annotations

import random
from array import array

import pytest

from extproc.routing.index import PrefixIndex


@pytest.mark.parametrize("seed", range(8))
def test_a_prompt_that_comes_again_is_what_its_copy_is(seed: int) -> None:
    rng = random.Random(seed)
    index = PrefixIndex(smallest_cells=1 << 10)  # so that it grows
    slots = [index.open(f"w{at}", 0, 0, 3000) for at in range(3)]
    shared = [rng.getrandbits(64) | 1 for _ in range(90)]
    prompts = [array("Q", shared + [rng.getrandbits(64) | 1 for _ in range(rng.randrange(200))]) for _ in range(6)]
    for _ in range(400):
        slot = rng.choice(slots)
        prompt = rng.choice(prompts)
        part = prompt if rng.random() < 0.6 else prompt[: rng.randrange(len(prompt))]
        act = rng.choice(("add", "stored", "removed", "drop", "sweep"))
        if act == "sweep":
            index.sweep(0.0002)
            if rng.random() < 0.2:
                index.add(slot, array("Q", [rng.getrandbits(64) | 1 for _ in range(150)]))
        else:
            getattr(index, act)(slot, part)
        for asked in prompts:
            found, copy = index.match(asked, slots), index.match(asked[:], slots)
            assert (found.precise, found.guess) == (copy.precise, copy.guess)
