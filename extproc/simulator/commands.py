"""Orders to engines that run, over a Unix socket: one JSON object a line, one answer a line.

    {"do": "totals"}                                    {"totals": [{"address": ..., "requests": ..., ...}, ...]}
    {"do": "kill", "engine": 3}                         {}
    {"do": "restart", "engine": 3, "down_s": 1.5}       {}, when it serves again
    {"do": "faults", "engine": 3, "faults": {"break_kind": "reset", "times": 2}}    {}

Engines are counted from 0. A mistake is answered with {"error": "..."}. Benchmarks and tests use it; the socket is as
reachable as its file.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extproc.simulator.faults import Break, Faults
from extproc.simulator.fleet import RunningEngine


class CommandError(Exception):
    """The order makes no sense; the message says why."""


async def serve_commands(path: Path, engines: Sequence[RunningEngine]) -> asyncio.Server:
    """Listen until the server is closed. Raises OSError."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for line in reader:
                writer.write(json.dumps(await _answer(line, engines)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # ValueError: a line beyond the reader's limit
            pass
        finally:
            writer.close()

    return await asyncio.start_unix_server(connected, path)


async def _answer(line: bytes, engines: Sequence[RunningEngine]) -> dict[str, Any]:
    try:
        order = json.loads(line)
        if not isinstance(order, dict):
            raise CommandError("not a JSON object")
        return await _obey(order, engines)
    except (CommandError, ValueError, TypeError) as error:
        return {"error": str(error)}


async def _obey(order: dict[str, Any], engines: Sequence[RunningEngine]) -> dict[str, Any]:
    match order.get("do"):
        case "totals":
            return {"totals": [{"address": each.address, **asdict(each.engine.totals())} for each in engines]}
        case "kill":
            await _named(order, engines).kill()
        case "restart":
            await _named(order, engines).restart(float(order.get("down_s", 0.0)))
        case "faults":
            values = dict(order.get("faults", {}))
            if values.get("break_kind") is not None:
                values["break_kind"] = Break(values["break_kind"])
            _named(order, engines).faults = Faults(**values)
        case other:
            raise CommandError(f"do: {other!r} is none of totals, kill, restart, faults")
    return {}


def _named(order: dict[str, Any], engines: Sequence[RunningEngine]) -> RunningEngine:
    number = order.get("engine")
    if not isinstance(number, int) or not 0 <= number < len(engines):
        raise CommandError(f"engine: {number!r} is none of 0 to {len(engines) - 1}")
    return engines[number]
