"""Gathers what all sources say, and makes Envoy and the processors learn of it in the right order.

A worker that comes stands in Envoy's file first, and may be chosen a second later: what is no endpoint there would
silently be served by another host. A worker that goes may not be chosen first, and leaves the file when no request runs
on it any more, or after its time.

What sources said, what the admin address added and whom it drains is kept in a file, so a start in which a source does
not answer has the workers of before. Adding and draining by hand stays over restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from extproc.config.conflicts import RANKED_ENGINES
from extproc.config.schema import Config, Pool
from extproc.discovery.roster import Entry, Found, Roster, Running, Source, static_workers

_log = logging.getLogger(__name__)

ENVOY_NOTICES_S = 1.0
"""Envoy needs half a second to use a file that has changed."""

STATIC = "configuration"
ADMIN = "admin"

_LEAST_DRAIN_S = 1.0
"""Time for all processes to hear of it, and for requests that were decided just before to count as running."""

_DRAIN_CHECK_S = 0.5

_FILE_CHECK_S = 2.0
"""How long somebody else's change to Envoy's files may last."""


class _Saved(Struct):
    """The file: what sources said last and whom the operator drains, by pool."""

    found: dict[str, dict[str, list[Found]]] = {}
    drained: dict[str, list[str]] = {}


class _Going(Struct):
    """A worker that no source names any more."""

    entry: Entry
    since_s: float


class ChangeError(Exception):
    """What the operator asks for cannot be; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Discovery:
    """Of one configuration, for all its processes."""

    def __init__(
        self,
        config: Config,
        publish: Callable[[Roster], None],
        running: Running,
        make_sources: Callable[[Pool], Mapping[str, Source]],
        write_endpoints: Callable[[str, Sequence[str]], bool],
    ) -> None:
        """`config`: with its names looked up. `publish` gets the roster whenever it changes.

        `make_sources`: a pool's, by name. `write_endpoints(pool, addresses)` replaces Envoy's file; False if nothing
        changed. It blocks.
        """
        self._pools = {pool.name: pool for pool in config.pools}
        self._publish = publish
        self._running = running
        self._make_sources = make_sources
        self._write_endpoints = write_endpoints
        self._drain_s = config.health.drain_s
        self._file = Path(config.envoy.directory).parent / "workers.json"
        self._found: dict[str, dict[str, list[Found]]] = {}  # by pool and source, in the sources' order
        self._drained: dict[str, set[str]] = {name: set() for name in self._pools}
        self._going: dict[str, dict[str, _Going]] = {name: {} for name in self._pools}
        self._in_file: dict[str, set[str]] = {name: set() for name in self._pools}
        self._waits: dict[tuple[str, str], float] = {}  # when one that came may be a candidate
        self._problems: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.roster: Roster = {}

    async def start(self) -> None:
        """Write and publish what is known now, then go on beside. Raises OSError where Envoy's folder is no good."""
        saved = await asyncio.to_thread(self._load)
        sources: dict[str, Mapping[str, Source]] = {}
        for name, pool in self._pools.items():
            sources[name] = self._make_sources(pool)
            before = saved.found.get(name, {})
            kept = {source: before.get(source, []) for source in (*sources[name], ADMIN)}
            self._found[name] = {STATIC: static_workers(pool), **kept}
            self._drained[name] = set(saved.drained.get(name, ()))
        await self._settle(first=True)
        self._tasks = [asyncio.create_task(self._follow())]
        for pool_name, of_pool in sources.items():
            for source_name, source in of_pool.items():
                self._tasks.append(asyncio.create_task(self._watch(pool_name, source_name, source)))

    async def stop(self) -> None:
        """End. Files stay as they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # ---- what operators ask

    def add(self, pool: str, worker: Found) -> bool:
        """False if it is there already. Raises ChangeError."""
        self._check_pool(pool)
        engine = self._pools[pool].engine
        if worker.ranks > 1 and engine not in RANKED_ENGINES:
            raise ChangeError(400, f"requests to {engine} cannot name a rank: leave `ranks` out")
        for name in self._pools:
            entry = self._known(name).get(worker.address)
            if entry is not None and (name != pool or entry.source != ADMIN):
                raise ChangeError(409, f"the worker {worker.address} is in the pool {name}, from {entry.source}")
        added = self._found[pool][ADMIN]
        same = [each for each in added if each.address == worker.address]
        self._drained[pool].discard(worker.address)
        self._found[pool][ADMIN] = [*(each for each in added if each.address != worker.address), worker]
        self._changed.set()
        return not same

    def remove(self, pool: str, address: str) -> None:
        """Drain it, then forget it. Raises ChangeError."""
        entry = self._entry(pool, address)
        added = self._found[pool][ADMIN]
        if all(each.address != address for each in added):
            if address in self._going[pool]:
                return
            raise ChangeError(
                409, f"the worker {address} comes from {entry.source}: take it out there, or drain it here"
            )
        self._found[pool][ADMIN] = [each for each in added if each.address != address]
        self._drained[pool].discard(address)
        self._changed.set()

    def drain(self, pool: str, address: str, *, drain: bool) -> None:
        """No new requests for it; or requests again. Raises ChangeError."""
        self._entry(pool, address)
        if address in self._going[pool]:
            raise ChangeError(409, f"the worker {address} is being removed")
        if drain:
            self._drained[pool].add(address)
        else:
            self._drained[pool].discard(address)
        self._changed.set()

    def _check_pool(self, pool: str) -> None:
        if pool not in self._pools:
            raise ChangeError(404, f"there is no pool {pool[:64]!r}; there are {', '.join(self._pools)}")

    def _known(self, pool: str) -> dict[str, Entry]:
        """By address: workers that are there, and those of which it is only noted that they come."""
        return self._wanted()[pool] | {entry.address: entry for entry in self.roster[pool]}

    def _entry(self, pool: str, address: str) -> Entry:
        self._check_pool(pool)
        entry = self._known(pool).get(address)
        if entry is not None:
            return entry
        raise ChangeError(404, f"the pool {pool} has no worker {address[:64]!r}")

    # ---- sources

    async def _watch(self, pool: str, name: str, source: Source) -> None:
        key = f"{pool}/{name}"
        ranked = self._pools[pool].engine in RANKED_ENGINES

        def tell(found: Sequence[Found]) -> None:
            if self._problems.pop(key, None):
                _log.info("pool %s: the source %s answers again", pool, name)
            if not ranked:
                found = [msgspec.structs.replace(each, ranks=1) for each in found]
            if list(found) != self._found[pool][name]:
                self._found[pool][name] = list(found)
                self._changed.set()

        def problem(text: str) -> None:
            if self._problems.get(key) != text:
                self._problems[key] = text
                _log.warning("pool %s: workers of %s stay as they are: %s", pool, name, text)

        while True:
            try:
                await source.run(tell, problem)
            except Exception:
                _log.exception("pool %s: the source %s failed; it begins again", pool, name)
            await asyncio.sleep(ENVOY_NOTICES_S)

    # ---- making it so

    async def _follow(self) -> None:
        while True:
            going = any(self._going.values())
            try:
                async with asyncio.timeout(_DRAIN_CHECK_S if going else _FILE_CHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._settle()
            except Exception as error:
                # Without this loop no change of workers would ever be seen again.
                unexpected = error if not isinstance(error, OSError) else None
                _log.error("workers cannot be written: %s; it is tried again", error, exc_info=unexpected)
                await asyncio.sleep(ENVOY_NOTICES_S)
                self._changed.set()

    async def _settle(self, *, first: bool = False) -> None:
        """Bring files and processors to what sources say now."""
        wanted = self._wanted()
        now_s = monotonic()
        for pool, entries in wanted.items():
            going = self._going[pool]
            self._drained[pool].intersection_update(entries)  # another may get its address
            for entry in self.roster.get(pool, ()):
                if entry.address not in entries and entry.address not in going:
                    going[entry.address] = _Going(msgspec.structs.replace(entry, draining=True, wait_s=0.0), now_s)
            for address in [address for address in going if address in entries]:
                del going[address]
        await asyncio.to_thread(self._save)  # what is wanted; the rest follows from it, also after a restart
        if not first:
            # Those that go are no candidates from now on; those that come are not there yet.
            known = {pool: {entry.address for entry in entries} for pool, entries in self.roster.items()}
            await self._give_out(
                {
                    pool: {address: entry for address, entry in entries.items() if address in known[pool]}
                    for pool, entries in wanted.items()
                }
            )
            await self._let_go()
        for pool, entries in wanted.items():
            in_file = {*entries, *self._going[pool]}
            new = in_file - self._in_file[pool]
            changed = await asyncio.to_thread(self._write_endpoints, pool, sorted(in_file))
            self._in_file[pool] = in_file
            if changed:
                due_s = monotonic() + ENVOY_NOTICES_S
                self._waits |= {(pool, address): due_s for address in new}
        await self._give_out(wanted)

    def _wanted(self) -> dict[str, dict[str, Entry]]:
        wanted: dict[str, dict[str, Entry]] = {}
        owners: dict[str, str] = {}
        for pool, by_source in self._found.items():
            entries: dict[str, Entry] = {}
            labels: set[str] = set()
            for source, found in by_source.items():
                for each in found:
                    owner = owners.setdefault(each.address, pool)
                    if owner != pool:
                        if self._problems.get(f"{pool}/{each.address}") != owner:
                            self._problems[f"{pool}/{each.address}"] = owner
                            _log.error("the worker %s of %s is in the pool %s already", each.address, source, owner)
                        continue
                    if each.address in entries:
                        continue
                    label = each.name if each.name is not None and each.name not in labels else each.address
                    labels.add(label)
                    draining = each.address in self._drained[pool]
                    entries[each.address] = Entry(each.address, label, source, each.ranks, draining)
            wanted[pool] = entries
        return wanted

    async def _give_out(self, wanted: dict[str, dict[str, Entry]]) -> None:
        now_s = monotonic()
        self._waits = {key: due_s for key, due_s in self._waits.items() if due_s > now_s}
        roster = {
            pool: (
                *(
                    msgspec.structs.replace(entry, wait_s=max(self._waits.get((pool, address), 0.0) - now_s, 0.0))
                    for address, entry in entries.items()
                ),
                *(going.entry for going in self._going[pool].values()),
            )
            for pool, entries in wanted.items()
        }
        if _without_waits(roster) != _without_waits(self.roster):
            self.roster = roster
            self._publish(roster)

    async def _let_go(self) -> None:
        """Forget those that have drained."""
        if not any(self._going.values()):
            return
        running = await self._running()
        now_s = monotonic()
        for pool, going in self._going.items():
            for address, each in list(going.items()):
                drained_s = now_s - each.since_s
                entry = each.entry
                labels = [entry.label] if entry.ranks == 1 else [f"{entry.label}#{i}" for i in range(entry.ranks)]
                left = sum(running.get((pool, label), 0) for label in labels)
                if drained_s >= self._drain_s or (drained_s >= _LEAST_DRAIN_S and not left):
                    del going[address]
                    _log.info("worker %s has left the pool %s", entry.label, pool)

    def _load(self) -> _Saved:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Saved)
        except FileNotFoundError:
            return _Saved()
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("%s cannot be used and is begun anew: %s", self._file, error)
            return _Saved()

    def _save(self) -> None:
        found = {
            pool: {source: list(each) for source, each in by_source.items() if source != STATIC and each}
            for pool, by_source in self._found.items()
        }
        saved = _Saved(
            {pool: of_pool for pool, of_pool in found.items() if of_pool},
            {pool: sorted(addresses) for pool, addresses in self._drained.items() if addresses},
        )
        content = msgspec.json.format(msgspec.json.encode(saved))
        with contextlib.suppress(FileNotFoundError):
            if self._file.read_bytes() == content:
                return
        if not saved.found and not saved.drained and not self._file.exists():
            return  # a configuration with only listed workers needs no such file
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            beside.write_bytes(content)
            beside.replace(self._file)
        finally:
            beside.unlink(missing_ok=True)


def _without_waits(roster: Roster) -> Any:
    return {pool: [msgspec.structs.replace(entry, wait_s=0.0) for entry in entries] for pool, entries in roster.items()}
