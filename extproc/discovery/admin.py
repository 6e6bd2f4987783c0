"""`/workers` of the admin address: list, add, drain and remove.

    GET    /workers                          all, with their state and what runs on them
    POST   /workers                          {"pool": …, "address": …, "name": …, "ranks": …} adds one
    POST   /workers/POOL/ADDRESS/drain       no new requests
    POST   /workers/POOL/ADDRESS/undrain     requests again
    DELETE /workers/POOL/ADDRESS             drains one that was added here, then forgets it

A change is answered with 202 as it is noted; the list says when it has been made.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Protocol
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct

from extproc.config.address import parse_worker
from extproc.discovery.discovery import ChangeError, Discovery
from extproc.discovery.roster import Entry, Found
from extproc.observe.admin import AdminReply, AdminRequest
from extproc.observe.workers import WorkerFigures

_SHORTEST_TOKEN = 16


class Fleetwide(Protocol):
    """Who has the workers."""

    @property
    def discovery(self) -> Discovery | None:
        """None until it has started."""
        ...

    async def worker_figures(self) -> Mapping[tuple[str, str], WorkerFigures]:
        """How workers are, by pool and label."""
        ...


class _NewWorker(Struct, frozen=True, forbid_unknown_fields=True):
    pool: str
    address: str
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1


class _Listed(Struct, frozen=True):
    pool: str
    address: str
    name: str
    source: str
    state: str  # ready, draining or not_ready
    running_requests: int
    waiting_tokens: int


class WorkersAdmin:
    """An `Area`."""

    def __init__(self, fleet: Fleetwide, token_file: Path | None, *, open_to_all: bool) -> None:
        """`open_to_all`: without a token, whoever reaches the address may do everything; else nobody."""
        self._fleet = fleet
        self._token_file = token_file
        self._open_to_all = open_to_all

    async def answer(self, request: AdminRequest) -> AdminReply:
        """One request."""
        refused = await self._refused(request)
        if refused is not None:
            return refused
        discovery = self._fleet.discovery
        if discovery is None or not discovery.roster:
            return _error(503, "the workers are not known yet")
        try:
            return await self._route(request, discovery)
        except ChangeError as error:
            return _error(error.status, str(error))

    async def _refused(self, request: AdminRequest) -> AdminReply | None:
        if "origin" in request.headers:
            return _error(403, "this is not for browsers")  # some page might make one ask on its user's machine
        if self._token_file is None:
            if self._open_to_all:
                return None
            return _error(403, "/workers needs listen.admin_token where listen.metrics is no loopback address")
        try:
            token = (await asyncio.to_thread(self._token_file.read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            return _error(500, f"listen.admin_token cannot be read: {error}")
        if len(token) < _SHORTEST_TOKEN:
            return _error(500, f"listen.admin_token has fewer than {_SHORTEST_TOKEN} characters")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            challenge = (("www-authenticate", 'Bearer realm="extproc"'),)
            return AdminReply(401, {"error": "send the token as authorization: Bearer"}, challenge)
        return None

    async def _route(self, request: AdminRequest, discovery: Discovery) -> AdminReply:
        method = request.method
        match [unquote(part) for part in request.path.strip("/").split("/")][1:]:
            case []:
                if method in ("GET", "HEAD"):
                    return AdminReply(200, {"workers": await self._list(discovery)})
                if method == "POST":
                    return _add(request.body, discovery)
                return _not_allowed("GET, POST")
            case [pool, address]:
                if method != "DELETE":
                    return _not_allowed("DELETE")
                discovery.remove(pool, address)
                return AdminReply(202, {"pool": pool, "address": address, "state": "draining"})
            case [pool, address, "drain" | "undrain" as order]:
                if method != "POST":
                    return _not_allowed("POST")
                discovery.drain(pool, address, drain=order == "drain")
                return AdminReply(202, {"pool": pool, "address": address, "order": order})
        return _error(404, "there are /workers, /workers/POOL/ADDRESS, and its /drain and /undrain")

    async def _list(self, discovery: Discovery) -> list[_Listed]:
        figures = await self._fleet.worker_figures()
        return [_listed(pool, entry, figures) for pool, entries in discovery.roster.items() for entry in entries]


def _listed(pool: str, entry: Entry, figures: Mapping[tuple[str, str], WorkerFigures]) -> _Listed:
    labels = [entry.label] if entry.ranks == 1 else [f"{entry.label}#{rank}" for rank in range(entry.ranks)]
    known = [figures[pool, label] for label in labels if (pool, label) in figures]
    ready = bool(known) and all(each.ready for each in known)
    return _Listed(
        pool,
        entry.address,
        entry.label,
        entry.source,
        "draining" if entry.draining else "ready" if ready else "not_ready",
        sum(each.running_requests for each in known),
        sum(each.waiting_tokens for each in known),
    )


def _add(body: bytes, discovery: Discovery) -> AdminReply:
    try:
        asked = msgspec.json.decode(body, type=_NewWorker)
        address = parse_worker(asked.address)
    except msgspec.DecodeError as error:
        return _error(400, f"the body must be JSON with pool and address, and may have name and ranks: {error}")
    except ValueError as error:
        return _error(400, str(error))
    if not address.is_ip:
        return _error(400, f"{address.host!r} is a host name: give an IP address")
    if asked.name is not None and not asked.name.isprintable():
        return _error(400, "the name must be printable")
    added = discovery.add(asked.pool, Found(str(address), asked.name, asked.ranks))
    return AdminReply(202 if added else 200, {"pool": asked.pool, "address": str(address)})


def _error(status: int, message: str) -> AdminReply:
    return AdminReply(status, {"error": message})


def _not_allowed(methods: str) -> AdminReply:
    return AdminReply(405, {"error": f"{methods} only"}, (("allow", methods),))
