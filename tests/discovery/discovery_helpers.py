"""A discovery with a source that a test speaks through, and files that are only remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from extproc.config.schema import Config
from extproc.discovery.discovery import Discovery
from extproc.discovery.roster import Found, Roster, Source, Tell


class Spoken:
    """A source that says what a test says."""

    def __init__(self) -> None:
        self.tell: Tell = lambda found: None
        self.problem: Callable[[str], None] = lambda text: None
        self.listening = asyncio.Event()

    async def run(self, tell: Tell, problem: Callable[[str], None]) -> None:
        self.tell, self.problem = tell, problem
        self.listening.set()
        await asyncio.Event().wait()


class Place:
    """A discovery of one pool, and what it has done, in order."""

    def __init__(self, folder: Path, *static: str, drain_s: float = 30.0, engine: str = "vllm") -> None:
        self.config = Config.model_validate(
            {
                "pools": [
                    {"name": "main", "models": ["m"], "workers": list(static), "engine": engine},
                    {"name": "other", "models": ["o"], "workers": []},
                ],
                "envoy": {"directory": str(folder / "xds")},
                "health": {"drain_s": drain_s},
            }
        )
        (folder / "xds").mkdir(exist_ok=True)
        self.source = Spoken()
        self.done: list[tuple[str, object]] = []
        self.running: dict[tuple[str, str], int] = {}
        self.files: dict[str, list[str]] = {}
        self._published = asyncio.Event()
        self.discovery = Discovery(self.config, self._publish, self._running, self._sources, self._write)

    def _sources(self, pool: object) -> Mapping[str, Source]:
        return {"spoken": self.source} if getattr(pool, "name", "") == "main" else {}

    def _publish(self, roster: Roster) -> None:
        entries = [(entry.address, "draining" if entry.draining else "in") for entry in roster["main"]]
        self.done.append(("published", dict(entries)))
        self._published.set()

    def _write(self, pool: str, addresses: Sequence[str]) -> bool:
        before = self.files.get(pool)
        self.files[pool] = list(addresses)
        if pool == "main" and before != self.files[pool]:
            self.done.append(("written", list(addresses)))
        return before is not None and before != self.files[pool]

    async def _running(self) -> Mapping[tuple[str, str], int]:
        return self.running

    def labels(self) -> list[str]:
        return [entry.label for entry in self.discovery.roster["main"]]

    async def until(self, what: tuple[str, object], within_s: float = 10.0) -> None:
        """Wait until this was the last thing done."""
        async with asyncio.timeout(within_s):
            while not self.done or self.done[-1] != what:
                self._published.clear()
                await self._published.wait()


def found(*addresses: str) -> list[Found]:
    return [Found(address) for address in addresses]
