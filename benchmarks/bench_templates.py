"""What chat templates cost: both engines, the whole path of a request, and a child process, on real templates.

Run: python benchmarks/bench_templates.py [FILE.jinja ...]
Without files: those of the package trl, as its wheel below build/packages has them (the tests fetch it).
"""

from __future__ import annotations

import asyncio
import sys
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time

from extproc.tokens.conversation import Conversation, variables
from extproc.tokens.template import ChatTemplate
from extproc.tokens.template_probes import long_conversation
from extproc.tokens.templates import ChatTemplates

NAMES = ("qwen2_5", "qwen3", "qwen3_6", "llama3_2", "deepseekv3", "gptoss", "glm4moe", "gemma3", "gemma4_v5", "phi3_5")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SIZES = (3, 41, 201)  # messages of 500 characters
ROUNDS = 5


def best_us(run: Callable[[], object]) -> float:
    """Microseconds, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = perf_counter()
        for _ in range(4):
            run()
        best = min(best, (perf_counter() - started) / 4)
    return best * 1e6


async def in_child_us(templates: ChatTemplates, conversation: Conversation) -> tuple[float, float]:
    """Microseconds on the clock, and of this process's CPU, of a rendering in a child process."""
    best, cpu = float("inf"), float("inf")
    values = variables(conversation, templates.forms("default"))
    for _ in range(ROUNDS * 4):
        started, used = perf_counter(), process_time()
        await templates._render_in_child("default", "minijinja", values, False)
        best, cpu = min(best, perf_counter() - started), min(cpu, process_time() - used)
    return best * 1e6, cpu * 1e6


async def bench(name: str, text: str) -> None:
    started = perf_counter()
    templates = await ChatTemplates.load({"default": text}, SPECIAL)
    load_ms = (perf_counter() - started) * 1e3
    jinja2, fast = (ChatTemplate(text, SPECIAL, engine) for engine in ("jinja2", "minijinja"))
    cells = []
    for size in SIZES:
        conversation = long_conversation(size, 500, tools=False)
        forms = templates.forms("default")
        figures = [best_us(lambda: engine.render(conversation, forms)) for engine in (jinja2, fast)]  # noqa: B023
        rendering = templates.render(conversation)
        if isinstance(rendering, Awaitable):
            await rendering
            whole = "child"
        else:
            whole = f"{best_us(lambda: templates.render(conversation)):.0f}"  # noqa: B023
        wall, cpu = await in_child_us(templates, conversation)
        cells.append(f"{figures[0]:7.0f} {figures[1]:6.0f} {whole:>6} {wall:6.0f}/{cpu:4.0f}")
    print(f"{name:14} {templates.engines['default']:9} {load_ms:6.0f} | " + " | ".join(cells))
    await templates.aclose()


def choose(files: list[str]) -> dict[str, str]:
    if files:
        return {Path(file).stem: Path(file).read_text("utf-8") for file in files}
    (wheel,) = (Path(__file__).parents[1] / "build" / "packages").glob("trl-*.whl")
    with zipfile.ZipFile(wheel) as bundle:
        return {name: bundle.read(f"trl/chat_templates/{name}.jinja").decode() for name in NAMES}


async def main(files: list[str]) -> None:
    print("us a rendering: jinja2, minijinja, a request's whole, in a child (clock/own CPU); load in ms")
    print(f"{'template':14} {'engine':9} {'load':>6} | " + " | ".join(f"{f'{size} messages':^34}" for size in SIZES))
    for name, text in choose(files).items():
        await bench(name, text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
