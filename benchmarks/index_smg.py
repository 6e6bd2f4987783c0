"""What SMG's prefix tree needs for a million tokens: its memory before and after prompts that share nothing.

Run by bench_index.py, where SMG is installed. SMG 1.13 with its defaults, two simulated engines without KV events, so
it keeps the tree that it falls back to; its caches of tokenization are off by default.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.gateway.model import MODEL, Model
from benchmarks.gateway.rows import SetUpName
from benchmarks.gateway.set_ups import HOST, SetUps
from extproc.cli.processes import Processes

_WORDS = 8_000  # of a prompt
_WARM_UP = 250  # prompts; allocators and buffers have their size then
_PROMPTS = 500


async def bytes_per_million_tokens(smg: Path) -> float:
    """Of resident memory. Raises CommandError where something is missing."""
    with tempfile.TemporaryDirectory() as name:
        processes = Processes(Path(name))
        try:
            set_up = await SetUps(processes, Path(name), smg).get(SetUpName.SMG, Model.PLAIN, 0.0)
            return await asyncio.to_thread(_measure, set_up.port, set_up.behind)
        finally:
            await processes.stop()


def _measure(port: int, pid: int) -> float:
    chance = random.Random(1)
    for _ in range(_WARM_UP):
        _ask(port, chance)
    before = _resident_bytes(pid)
    tokens = sum(_ask(port, chance) for _ in range(_PROMPTS))
    return (_resident_bytes(pid) - before) / (tokens / 1e6)


def _ask(port: int, chance: random.Random) -> int:
    """Tokens of its prompt."""
    text = " ".join(f"{chance.getrandbits(20):x}" for _ in range(_WORDS))
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    request = Request(
        f"http://{HOST}:{port}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["usage"]["prompt_tokens"])


def _resident_bytes(root: int) -> int:
    """Of a process and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(line[line.rindex(")") + 2 :].split()[1])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in family)
    return pages * os.sysconf("SC_PAGE_SIZE")
