"""Workers out of a YAML or JSON file, which is read again when it has changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import TypeAdapter, ValidationError

from extproc.config.fields import shorthand
from extproc.config.schema import Worker, dotted
from extproc.discovery.roster import Found, SourceError, Tell

_PERIOD_S = 0.5
_MAX_BYTES = 4 << 20

_WORKERS: TypeAdapter[list[Worker]] = TypeAdapter(list[Annotated[Worker, shorthand("address")]])


class FileSource:
    """Polls a file: that also sees one which a container's volume exchanges by symbolic link."""

    def __init__(self, path: Path, period_s: float = _PERIOD_S) -> None:
        self._path = path
        self._period_s = period_s

    async def run(self, tell: Tell, problem: Callable[[str], None]) -> None:
        """See Source."""
        seen: tuple[int, ...] | None = None
        while True:
            try:
                now = await asyncio.to_thread(self._stamp)
                if now != seen:
                    tell(await asyncio.to_thread(self._read))
                    seen = now
            except SourceError as error:
                problem(str(error))
            await asyncio.sleep(self._period_s)

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._path)
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror or error}") from error
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> Sequence[Found]:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
            if len(content) > _MAX_BYTES:
                raise SourceError(f"{self._path} is over {_MAX_BYTES} bytes")
            return parse_workers(content)
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._path}: {error}") from error


def parse_workers(content: bytes) -> list[Found]:
    """A list of workers as configurations have them, with IP addresses. Raises ValueError, which says where."""
    try:
        plain = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"is neither YAML nor JSON: {error}") from error
    try:
        workers = _WORKERS.validate_python(plain if plain is not None else [])
    except ValidationError as error:
        first = error.errors()[0]
        place = dotted(("workers", *first["loc"]))
        raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from error
    for worker in workers:
        if not worker.address.is_ip:
            raise ValueError(f"{worker.address} is a host name: write IP addresses, or use `discover.dns`")
    return [Found(str(worker.address), worker.name, worker.ranks) for worker in workers]
