"""Each source tells the whole list when it has changed, and keeps quiet about what it does not know."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from extproc.config.fleet import DnsWorkers
from extproc.discovery.dns_source import DnsSource, look_up_all
from extproc.discovery.file_source import FileSource, parse_workers
from extproc.discovery.roster import Found, Source


class Heard:
    """What a source told, in a queue, and what it complained of."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[list[Found]] = asyncio.Queue()
        self.problems: asyncio.Queue[str] = asyncio.Queue()

    async def next(self) -> list[Found]:
        return await asyncio.wait_for(self.told.get(), 5)


@contextlib.asynccontextmanager
async def listening(source: Source) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(source.run(lambda found: heard.told.put_nowait(list(found)), heard.problems.put_nowait))
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def exchange(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


async def test_a_file_is_read_again_when_it_changes_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text("- 10.0.0.1:50051\n- {address: 'grpc://10.0.0.2:50051', name: second, ranks: 2}\n")
    async with listening(FileSource(path, 0.01)) as heard:
        first = [Found("10.0.0.1:50051"), Found("10.0.0.2:50051", "second", 2)]
        assert await heard.next() == first
        exchange(path, "- 10.0.0.1:50051\n- [")
        assert "workers.yaml" in await asyncio.wait_for(heard.problems.get(), 5)
        assert heard.told.empty()
        exchange(path, '["10.0.0.3:1"]')
        assert await heard.next() == [Found("10.0.0.3:1")]
        path.unlink()
        assert "No such file" in await asyncio.wait_for(heard.problems.get(), 5)
        exchange(path, "[]")
        assert await heard.next() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{a: 1}", "workers: .*list"),
        ("- {addres: 10.0.0.1:1}", r"workers\[0\]\.addres"),
        ("- 10.0.0.1", r"workers\[0\].*port"),
        ("- engine.example:50051", "host name"),
        ("- {address: 10.0.0.1:1, ranks: 0}", r"workers\[0\]\.ranks"),
        ("\x00", "neither YAML nor JSON"),
        ("[" * 5000, "neither YAML nor JSON"),
    ],
)
def test_a_file_that_is_no_list_of_workers_is_refused_with_the_place(content: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){words}"):
        parse_workers(content.encode())


async def test_a_name_is_looked_up_again_and_all_its_addresses_are_workers() -> None:
    answers: list[Sequence[str] | OSError] = [
        ["10.0.0.1", "10.0.0.2"],
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        ["10.0.0.2", "::1"],
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        ["10.0.0.3"],
        socket.gaierror(getattr(socket, "EAI_NODATA", socket.EAI_NONAME), "No address associated with hostname"),
    ]
    held = asyncio.Event()

    async def lookup(name: str) -> Sequence[str]:
        assert name == "engines.local"
        if not answers:
            await held.wait()
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    section = DnsWorkers(name="engines.local", port=50051, interval_s=0.1, ranks=2)
    async with listening(DnsSource(section, lookup)) as heard:
        assert await heard.next() == [Found("10.0.0.1:50051", None, 2), Found("10.0.0.2:50051", None, 2)]
        assert await heard.next() == [Found("10.0.0.2:50051", None, 2), Found("[::1]:50051", None, 2)]
        assert "Temporary failure" in heard.problems.get_nowait()
        assert await heard.next() == []
        assert await heard.next() == [Found("10.0.0.3:50051", None, 2)]
        assert await heard.next() == []
        assert heard.problems.empty()


async def test_the_systems_resolver_gives_addresses_of_one_family() -> None:
    assert await look_up_all("localhost") == ["127.0.0.1"]
