"""`python -m extproc.simulator`: engines as a process, one JSON line for each when it serves."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from extproc.simulator.artifacts import ArtifactError
from extproc.simulator.commands import serve_commands
from extproc.simulator.faults import Break, Faults
from extproc.simulator.fleet import RunningEngine, start_engines
from extproc.simulator.kv_publisher import PublisherError
from extproc.simulator.spec import Answers, EngineSpec
from extproc.simulator.speeds import spread_speeds
from extproc.transport.listening import ListenError, TcpAddress, parse_listen

_TEXT_SEPARATOR = "---"
_NO_OPTION = ("texts", "faults")  # given in other ways
_LAST_PORT = 65535
_Kind = TypeVar("_Kind")
_METAVARS = {int: "N", float: "NUMBER", str: "TEXT"}
_DESCRIPTION = """\
Run simulated engines that speak vLLM's gRPC protocol, without a GPU or a model.

Each engine prints one JSON line on standard output when it serves. SIGTERM or
Ctrl-C ends all of them.

Examples, to be followed by `extproc up --worker-urls grpc://127.0.0.1:50051`:

    extproc simulate --port 50051
    extproc simulate --port 50051 --count 4 --answers natural
    extproc simulate --port 50051 --fault-break-kind reset --fault-times 1

Exit status: 0 after a signal, 1 if an engine cannot start, 2 for a mistake in
the command line.
"""


class OptionError(Exception):
    """An option's value makes no sense; the message says what to write instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code; SystemExit where argparse finds a mistake."""
    options = _parser().parse_args(arguments)
    try:
        _run(specs_from(options), options.grace_s, options.control)
    except OptionError as error:
        print(f"extproc simulate: {error}", file=sys.stderr)
        return 2
    except (ArtifactError, ListenError, PublisherError) as error:
        print(f"extproc simulate: {error}", file=sys.stderr)
        return 1
    return 0


def specs_from(options: argparse.Namespace) -> list[EngineSpec]:
    """The engines that the options describe. Raises OptionError."""
    values = {field.name: getattr(options, field.name) for field in fields(EngineSpec) if field.name not in _NO_OPTION}
    if options.port is not None:
        values["listen"] = f"127.0.0.1:{options.port}"
    if options.script is not None:
        values["answers"] = Answers.SCRIPT
        values["texts"] = read_script(options.script)
    elif options.answers is Answers.SCRIPT:
        raise OptionError("--answers script needs --script FILE")
    if not (options.tokenizer / "tokenizer.json").is_file():
        raise OptionError(f"--tokenizer {options.tokenizer}: not a folder with a tokenizer.json")
    if not options.grace_s >= 0:
        raise OptionError(f"--grace-s must not be negative, got {options.grace_s:g}")
    if not 0 <= options.speed_spread < 1:
        raise OptionError(f"--speed-spread must be at least 0 and below 1, got {options.speed_spread:g}")
    faults = {field.name: getattr(options, f"fault_{field.name}") for field in fields(Faults)}
    values["faults"] = _made(Faults, faults, "--fault-")
    specs = _numbered(_made(EngineSpec, values, "--"), options.count)
    speeds = spread_speeds(len(specs), options.speed_spread, options.speed_seed)
    return [replace(spec, speed=spec.speed * speed) for spec, speed in zip(specs, speeds, strict=True)]


def _numbered(spec: EngineSpec, count: int) -> list[EngineSpec]:
    """As many engines, on one port after the other."""
    if count < 1:
        raise OptionError(f"--count must be at least 1, got {count}")
    try:
        where = parse_listen(spec.listen)
    except ListenError as error:
        raise OptionError(f"--listen {error}") from error
    if count == 1:
        return [spec]
    if not isinstance(where, TcpAddress):
        raise OptionError("--count above 1 needs TCP ports, --listen names a Unix socket")
    if where.port + count - 1 > _LAST_PORT:
        raise OptionError(f"--count {count} from port {where.port} on goes beyond port {_LAST_PORT}")
    return [
        replace(
            spec,
            listen=str(replace(where, port=where.port + number if where.port else 0)),
            kv_zmq=_next_port(spec.kv_zmq, number),
            kv_zmq_replay=_next_port(spec.kv_zmq_replay, number),
            seed=spec.seed + number,
        )
        for number in range(count)
    ]


def _next_port(endpoint: str, number: int) -> str:
    """A ZeroMQ address so many ports on. Raises OptionError."""
    start, _, port = endpoint.rpartition(":")
    if not endpoint or port in ("0", "*"):
        return endpoint
    if not (port.isascii() and port.isdigit()) or int(port) + number > _LAST_PORT:
        raise OptionError(
            f"--count above 1 needs TCP ports, and {endpoint} has none that leaves room for {number} more"
        )
    return f"{start}:{int(port) + number}"


def _made(kind: type[_Kind], values: dict[str, Any], prefix: str) -> _Kind:
    """A checked value. Raises OptionError, which calls the field as its option."""
    try:
        return kind(**values)
    except ValueError as error:
        message = str(error)
        name = re.match(r"\w*", message)[0]  # type: ignore[index]  # matches the empty string too
        option = prefix + name.replace("_", "-") if name in values else name
        raise OptionError(option + message[len(name) :]) from error


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
        usage="%(prog)s [OPTIONS]",
        description=_DESCRIPTION,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    engines = parser.add_argument_group("engines")
    engines.add_argument(
        "--count",
        type=int,
        default=1,
        metavar="N",
        help="engines; each has the next port after the one before (default: 1)",
    )
    engines.add_argument("--port", type=_port, metavar="PORT", help="short for --listen 127.0.0.1:PORT")
    engines.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help=f"texts to answer with one after the other, lines {_TEXT_SEPARATOR} between them",
    )
    engines.add_argument(
        "--grace-s",
        type=float,
        default=1.0,
        metavar="NUMBER",
        help="seconds that running requests have at the end (default: 1)",
    )
    engines.add_argument(
        "--speed-spread",
        type=float,
        default=0.0,
        metavar="NUMBER",
        help="engines are up to this share slower and faster than the others, in even steps (default: 0)",
    )
    engines.add_argument(
        "--speed-seed", type=int, default=0, metavar="N", help="decides which engine has which speed (default: 0)"
    )
    engines.add_argument(
        "--control",
        type=Path,
        metavar="SOCKET",
        help="Unix socket to make for orders to running engines (totals, kill, restart, faults), a JSON object a line",
    )
    for field in fields(EngineSpec):
        if field.name not in _NO_OPTION:
            _add_option(engines, field, field.name)
    engines.add_argument("-h", "--help", action="help", help="show this message and exit")
    faults = parser.add_argument_group("faults", "What the engines do wrong, from the start. Without these, nothing.")
    for fault in fields(Faults):
        _add_option(faults, fault, f"fault_{fault.name}")
    return parser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """The description as it is written, and option names on lines of their own where they are long."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def _add_option(parser: argparse._ActionsContainer, field: Field[Any], name: str) -> None:
    assert field.default is not MISSING
    option = "--" + name.replace("_", "-")
    default = field.default
    help_text = field.metadata["help"]
    if isinstance(default, bool):
        parser.add_argument(option, dest=name, action="store_true", help=help_text)
        return
    if default not in (None, ""):
        shown = (
            default.value if isinstance(default, Enum) else f"{default:g}" if isinstance(default, float) else default
        )
        help_text += f" (default: {field.metadata.get('default', shown)})"
    kind: Any = type(default)
    if field.name == "break_kind":
        kind = Break
    elif default is None:
        kind = int
    if issubclass(kind, Enum):
        names = [each.value for each in kind]
        parser.add_argument(
            option, dest=name, type=_one_of(kind), default=default, metavar="|".join(names), help=help_text
        )
        return
    parser.add_argument(
        option,
        dest=name,
        type=Path if isinstance(default, Path) else kind,
        default=default,
        metavar=field.metadata.get("metavar") or _METAVARS[kind],
        help=help_text,
    )


def _one_of(kind: type[Enum]) -> Callable[[str], Enum]:
    def read(text: str) -> Enum:
        try:
            return kind(text)
        except ValueError:
            names = ", ".join(each.value for each in kind)
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {names}") from None

    return read


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; 0 to {_LAST_PORT}, 0 for any free one")
    return int(text)


def _run(specs: list[EngineSpec], grace_s: float, control: Path | None) -> None:
    # Millions of cache blocks hold no cycles, and looking through all of them would stop every engine for a second:
    # only the young generations are collected, where ended requests are found.
    gc.set_threshold(20_000, 3, 1_000_000)
    try:
        import uvloop
    except ImportError:  # no wheel for this platform
        asyncio.run(_serve(specs, grace_s, control))
    else:
        uvloop.run(_serve(specs, grace_s, control))


async def _serve(specs: list[EngineSpec], grace_s: float, control: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engines = await start_engines(specs)
    try:
        commands = None
        if control is not None:
            try:
                commands = await serve_commands(control, engines)
            except OSError as error:
                raise ListenError(f"--control {control}: {error.strerror or error}") from error
        for engine in engines:
            print(_ready_line(engine), flush=True)
        await stop.wait()
        if commands is not None:
            commands.close()
    finally:
        await asyncio.gather(*(engine.stop(grace_s) for engine in engines))


def _ready_line(engine: RunningEngine) -> str:
    return json.dumps({"address": engine.address, "url": engine.url, "model": engine.engine.spec.model})


if __name__ == "__main__":
    sys.exit(main())
