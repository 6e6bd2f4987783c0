"""The longest turn of the event loop is seen."""

from __future__ import annotations

import asyncio
import time

from extproc.observe.turns import LoopTurns


async def test_a_long_turn_is_seen() -> None:
    turns = LoopTurns()
    turns.start()
    try:
        async with asyncio.timeout(10):
            while turns.longest_s < 0.1:
                time.sleep(0.2)  # noqa: ASYNC251
                await asyncio.sleep(0)
    finally:
        turns.stop()
