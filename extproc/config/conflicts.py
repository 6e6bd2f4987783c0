"""Mistakes that no single value shows: names used twice, models that nobody serves, listeners in each other's way.

Works on plain data as it comes from a file, and passes over whatever has the wrong shape (the schema reports that), so
that one mistake never hides another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from extproc.config.address import (
    Address,
    HostPort,
    UnixPath,
    check_unix_length,
    of_process,
    parse_listen,
    parse_socket,
    parse_worker,
)

Path = tuple[str | int, ...]
_A = TypeVar("_A", bound=Address)

_DEFAULT_WEIGHT = 1  # only to tell zero from the rest
_MOST_PROCESSES = 64  # more is a mistake of its own


@dataclass(frozen=True, slots=True)
class Conflict:
    """One mistake: where in the data, and what to write instead."""

    path: Path
    message: str


def find_conflicts(data: object) -> list[Conflict]:
    """Everything in `data` that contradicts something else in it."""
    pools = list(_items(data, "pools"))
    found: list[Conflict] = []
    found += _pool_names(pools)
    found += _models(pools)
    found += _workers(pools)
    found += _ranks(pools)
    found += _protocols(pools)
    found += _no_workers(pools)
    found += _session_keys(pools)
    found += _listeners(data, pools)
    found += _processor_tls(data)
    return found


def _session_keys(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    for path, pool in pools:
        if _get(pool, "policy") == "session" and _get(_get(_get(pool, "options"), "session"), "key") is None:
            yield Conflict(
                (*path, "policy"), "the policy session signs tokens: name its key file in options.session.key"
            )


def _pool_names(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    seen: dict[str, Path] = {}
    for path, pool in pools:
        name = _get(pool, "name")
        if isinstance(name, str):
            if name in seen:
                yield Conflict((*path, "name"), f"another pool is already named {name!r}: give each its own name")
            seen.setdefault(name, path)


def _models(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    weights: dict[str, list[tuple[Path, int]]] = {}
    aliases: list[tuple[Path, str, str]] = []  # where, the alias, its model
    for pool_path, pool in pools:
        here: set[str] = set()
        for path, model in _items(pool, "models", pool_path):
            name = model if isinstance(model, str) else _get(model, "name")
            if not isinstance(name, str):
                continue
            if name in here:
                yield Conflict(path, f"this pool already serves a model {name!r}: write it once")
            here.add(name)
            weight = _get(model, "weight", _DEFAULT_WEIGHT)
            weights.setdefault(name, []).append((path, weight if isinstance(weight, int) else _DEFAULT_WEIGHT))
            own: set[str] = set()
            for alias_path, alias in _items(model, "aliases", path):
                if not isinstance(alias, str):
                    continue
                if alias in own:
                    yield Conflict(alias_path, f"the alias {alias!r} is written twice for this model")
                elif alias == name:
                    yield Conflict(alias_path, f"the alias {alias!r} is the model's own name: leave it out")
                else:
                    aliases.append((alias_path, alias, name))
                own.add(alias)
    meant: dict[str, str] = {}
    for path, alias, name in aliases:
        if alias in weights:
            yield Conflict(path, f"the alias {alias!r} is also the name of a model: rename one of them")
        elif meant.setdefault(alias, name) != name:
            yield Conflict(
                path, f"the alias {alias!r} already stands for the model {meant[alias]!r}: rename one of them"
            )
    for name, shares in weights.items():
        if all(weight == 0 for _, weight in shares):
            yield Conflict(shares[0][0], f"nobody serves {name!r}, as all its weights are 0: give one a weight over 0")


def _workers(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    owners: dict[HostPort, str] = {}
    for pool_path, pool in pools:
        label = str(_get(pool, "name", f"pools[{pool_path[-1]}]"))
        names: set[str] = set()
        for path, address in _worker_addresses(pool, pool_path):
            if address in owners:
                where = "twice in this pool" if owners[address] == label else f"already in the pool {owners[address]!r}"
                yield Conflict(path, f"the worker {address} is {where}: a worker belongs to one pool, once")
            owners.setdefault(address, label)
        for path, worker in _items(pool, "workers", pool_path):
            name = _get(worker, "name")
            if isinstance(name, str):
                if name in names:
                    yield Conflict((*path, "name"), f"another worker of this pool is already named {name!r}")
                names.add(name)


RANKED_ENGINES = ("vllm",)
"""Whose protocol's requests can name a data-parallel rank."""


def _ranks(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    for pool_path, pool in pools:
        engine = _get(pool, "engine", "vllm")
        if engine in RANKED_ENGINES:
            continue
        places = [(path, worker) for path, worker in _items(pool, "workers", pool_path)]
        places.append(((*pool_path, "discover", "dns"), _get(_get(pool, "discover"), "dns")))
        for path, worker in places:
            ranks = _get(worker, "ranks", 1)
            if isinstance(ranks, int) and ranks > 1:
                yield Conflict((*path, "ranks"), f"requests to {engine} cannot name a rank: leave `ranks` out")


_HTTP_ENGINE = "openai"


def _protocols(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    """What belongs to engines over HTTP, in pools of others, and the other way round."""
    for pool_path, pool in pools:
        engine = _get(pool, "engine", "vllm")
        over_http = engine == _HTTP_ENGINE
        for path, worker in _items(pool, "workers", pool_path):
            address = worker if isinstance(worker, str) else _get(worker, "address")
            scheme = address.partition("://")[0] if isinstance(address, str) and "://" in address else ""
            if scheme == "http" and not over_http:
                yield Conflict(
                    path, f"{address} speaks HTTP, but the pool's engine is {engine}: write `engine: openai`"
                )
            if scheme == "grpc" and over_http:
                yield Conflict(path, f"{address} speaks gRPC, but the pool's engine is openai: write `engine: vllm`")
        if over_http:
            events = _get(pool, "kv_events")
            source = events if isinstance(events, str) else _get(events, "source")
            if source == "zmq" and _get(pool, "tokenizer", "worker") == "worker":
                yield Conflict(
                    (*pool_path, "kv_events"),
                    "the events name tokens, which are known only with a tokenizer: set `tokenizer` to a path",
                )
            continue
        http = _get(pool, "http")
        if isinstance(http, dict):
            defaults = {"path_prefix": "", "protocol": "http1", "ask_usage": True}
            if any(value != defaults.get(key) for key, value in http.items()):
                yield Conflict((*pool_path, "http"), f"the engine {engine} speaks gRPC: leave `http` out")
        for path, model in _items(pool, "models", pool_path):
            if _get(model, "engine_name") is not None:
                yield Conflict((*path, "engine_name"), f"requests to {engine} name no model: leave `engine_name` out")


def _no_workers(pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    for pool_path, pool in pools:
        if isinstance(pool, dict) and "workers" not in pool and not _get(pool, "discover"):
            yield Conflict(
                pool_path,
                "there are neither `workers` nor `discover`: write its workers, or `workers: []` if they are to come "
                "through the admin address",
            )


def _listeners(data: object, pools: list[tuple[Path, Any]]) -> Iterator[Conflict]:
    from extproc.config.schema import Config, Listen  # the schema imports this module

    listen = _get(data, "listen", {})
    taken: list[tuple[str, Address]] = []
    places: list[tuple[Path, Any, Callable[[str], Address]]] = []
    for key in ("http", "admin", "metrics"):
        places.append((("listen", key), _get(listen, key, Listen.model_fields[key].default), parse_listen))
    sockets = _get(listen, "processor", Listen.model_fields["processor"].default)
    if isinstance(sockets, list | tuple):
        places += [(("listen", "processor", index), text, parse_socket) for index, text in enumerate(sockets)]
    processes = _get(data, "processes", Config.model_fields["processes"].default)
    many = isinstance(processes, int) and 1 < processes <= _MOST_PROCESSES
    for path, text, parse in places:
        written = _parsed(parse, text)
        if written is None:
            continue
        label = ".".join(str(step) for step in path[:2])
        own = [of_process(written, number) for number in range(processes)] if many and len(path) > 2 else [written]
        for address in own:
            clash = next((each for each in taken if _collide(address, each[1])), None)
            if clash is not None:
                yield Conflict(path, f"{address} is already taken by {clash[0]} ({clash[1]}): use another port")
                break
            problem = _unusable(address)
            if problem:
                yield Conflict(path, f"with {processes} processes: {problem}")
                break
        taken += [(label, address) for address in own]
    for pool_path, pool in pools:
        for path, worker in _worker_addresses(pool, pool_path):
            for label, other in taken:
                if isinstance(other, HostPort) and _reaches(worker, other):
                    yield Conflict(
                        path, f"the worker {worker} is this gateway's own {label}: write the engine's address"
                    )
                    break


def _processor_tls(data: object) -> Iterator[Conflict]:
    from extproc.config.schema import Listen  # the schema imports this module

    listen = _get(data, "listen", {})
    tls = _get(listen, "processor_tls")
    if not isinstance(tls, dict):
        return
    here: Path = ("listen", "processor_tls")
    sockets = _get(listen, "processor", Listen.model_fields["processor"].default)
    if isinstance(sockets, list | tuple):
        for text in sockets:
            if isinstance(_parsed(parse_socket, text), UnixPath):
                yield Conflict(here, f"{text} is a Unix socket, which is not encrypted: leave out processor_tls, or it")
                break
    if (_get(tls, "client_certificate") is None) != (_get(tls, "client_key") is None):
        yield Conflict(here, "client_certificate and client_key belong together: write both or none")
    elif _get(tls, "client_ca") is not None and _get(tls, "client_certificate") is None:
        yield Conflict(
            (*here, "client_ca"), "Envoy would have nothing to show: write client_certificate and client_key too"
        )


def _worker_addresses(pool: object, pool_path: Path) -> Iterator[tuple[Path, HostPort]]:
    for path, worker in _items(pool, "workers", pool_path):
        written_short = isinstance(worker, str)
        address = _parsed(partial(parse_worker, http=True), worker if written_short else _get(worker, "address"))
        if address is not None:
            yield (path if written_short else (*path, "address")), address


def _reaches(worker: HostPort, listener: HostPort) -> bool:
    if worker.port != listener.port:
        return False
    return worker.host == listener.host or (listener.is_wildcard and worker.is_loopback)


def _collide(one: Address, other: Address) -> bool:
    if not (isinstance(one, HostPort) and isinstance(other, HostPort)):
        return one == other
    if one.port != other.port:
        return False
    # [::] takes IPv4 too unless told otherwise, so a wildcard is in the way of every address.
    return one.host == other.host or one.is_wildcard or other.is_wildcard


def _unusable(address: Address) -> str | None:
    """What is wrong with the socket of one of several processes, where the one that was written is right."""
    if isinstance(address, HostPort):
        return "the ports go beyond 65535: begin with a lower one" if address.port > 65535 else None
    if isinstance(address, UnixPath) and address.path.startswith("/"):
        try:
            check_unix_length(address)
        except ValueError as error:
            return str(error)
    return None


def _parsed(parse: Callable[[str], _A], text: object) -> _A | None:
    if not isinstance(text, str):
        return None
    try:
        return parse(text)
    except ValueError:
        return None


def _get(value: object, key: str, default: Any = None) -> Any:
    return value.get(key, default) if isinstance(value, dict) else default


def _items(value: object, key: str, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    items = _get(value, key)
    if isinstance(items, list | tuple):
        for index, item in enumerate(items):
            yield (*path, key, index), item
