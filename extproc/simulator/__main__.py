"""`python -m extproc.simulator`: engines as a process, one JSON line for each when it serves."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from extproc.simulator.artifacts import ArtifactError
from extproc.simulator.faults import Break, Faults
from extproc.simulator.fleet import RunningEngine, start_engines
from extproc.simulator.spec import Answers, EngineSpec
from extproc.transport.listening import ListenError, TcpAddress, parse_listen

_TEXT_SEPARATOR = "---"
_NO_OPTION = ("texts", "faults")  # given in other ways


class OptionError(Exception):
    """An option's value makes no sense; the message says what to write instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        specs = specs_from(options)
        _run(specs, options.grace_s)
    except (OptionError, ArtifactError, ListenError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 1
    return 0


def specs_from(options: argparse.Namespace) -> list[EngineSpec]:
    """The engines that the options describe. Raises OptionError and ListenError."""
    values = {field.name: getattr(options, field.name) for field in fields(EngineSpec) if field.name not in _NO_OPTION}
    if options.port is not None:
        values["listen"] = f"127.0.0.1:{options.port}"
    if options.script is not None:
        values["answers"] = Answers.SCRIPT
        values["texts"] = read_script(options.script)
    try:
        values["faults"] = Faults(**{field.name: getattr(options, f"fault_{field.name}") for field in fields(Faults)})
        spec = EngineSpec(**values)
    except ValueError as error:
        raise OptionError(str(error)) from error
    if options.count < 1:
        raise OptionError(f"--count must be at least 1, got {options.count}")
    where = parse_listen(spec.listen)
    if options.count == 1:
        return [spec]
    if not isinstance(where, TcpAddress):
        raise OptionError("--count above 1 needs TCP ports, --listen names a Unix socket")
    return [
        replace(
            spec,
            listen=str(replace(where, port=where.port + number if where.port else 0)),
            seed=spec.seed + number,
        )
        for number in range(options.count)
    ]


def read_script(file: Path) -> tuple[str, ...]:
    """Texts of a file, with lines `---` between them. Raises OptionError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--script {file}: {error}") from error
    texts = [""]
    for line in lines:
        if line.strip() == _TEXT_SEPARATOR:
            texts.append("")
        else:
            texts[-1] += line
    return tuple(text.removesuffix("\n") for text in texts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="extproc simulate",
        description="Simulated engines that speak vLLM's gRPC protocol. One JSON line per engine on standard output "
        "when it serves; SIGTERM ends all of them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=1, help="engines; each has the next port after the one before")
    parser.add_argument("--port", type=int, help="short for --listen 127.0.0.1:PORT")
    parser.add_argument(
        "--script", type=Path, metavar="FILE", help=f"texts to answer with, lines {_TEXT_SEPARATOR} between them"
    )
    parser.add_argument("--grace-s", type=float, default=1.0, help="seconds that running requests have at the end")
    for field in fields(EngineSpec):
        if field.name not in _NO_OPTION:
            _add_option(parser, field, field.name)
    faults = parser.add_argument_group("faults")
    for fault in fields(Faults):
        _add_option(faults, fault, f"fault_{fault.name}")
    return parser


def _add_option(parser: argparse._ActionsContainer, field: Field[Any], name: str) -> None:
    assert field.default is not MISSING
    option = "--" + name.replace("_", "-")
    default = field.default
    help_text = field.metadata["help"]
    if isinstance(default, bool):
        parser.add_argument(option, dest=name, action="store_true", help=help_text)
        return
    kind: Any = type(default)
    if field.name == "break_kind":
        kind = Break
    elif default is None:
        kind = int
    choices = list(kind) if issubclass(kind, Enum) else None
    parser.add_argument(
        option,
        dest=name,
        type=Path if isinstance(default, Path) else kind,
        default=default,
        choices=choices,
        metavar="{" + ",".join(each.value for each in choices) + "}" if choices else None,
        help=help_text,
    )


def _run(specs: list[EngineSpec], grace_s: float) -> None:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform
        asyncio.run(_serve(specs, grace_s))
    else:
        uvloop.run(_serve(specs, grace_s))


async def _serve(specs: list[EngineSpec], grace_s: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engines = await start_engines(specs)
    try:
        for engine in engines:
            print(_ready_line(engine), flush=True)
        await stop.wait()
    finally:
        await asyncio.gather(*(engine.stop(grace_s) for engine in engines))


def _ready_line(engine: RunningEngine) -> str:
    return json.dumps({"address": engine.address, "url": engine.url, "model": engine.engine.spec.model})


if __name__ == "__main__":
    sys.exit(main())
