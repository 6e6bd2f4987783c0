"""Reads a configuration file, and names every mistake in it at once, each with its place and what to write instead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from extproc.config.conflicts import find_conflicts
from extproc.config.explain import explain
from extproc.config.hub import HUB_PREFIX
from extproc.config.schema import Config, dotted
from extproc.config.tree import MAX_FILE_BYTES, Node, Place, TreeError, parse_tree

_TOKENIZER_FILES = ("tokenizer.json", "*.tiktoken", "tiktoken.model", "tekken.json")


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake."""

    path: str  # in the file's data, such as `pools[0].policy`; "" for the file itself
    line: int  # from 1; 0 where the file could not be read at all
    column: int
    message: str
    suggestion: str | None = None  # the word that was probably meant


class ConfigError(Exception):
    """The file cannot be used. `problems` is in the order of the file and never empty."""

    def __init__(self, file: Path, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        super().__init__(format_problems(file, problems))


def format_problems(file: Path, problems: Iterable[Problem]) -> str:
    """One line for each mistake, as compilers write them: `file:line:column: message`."""
    lines = []
    for problem in problems:
        place = f"{file}:{problem.line}:{problem.column}" if problem.line else str(file)
        subject = f"{problem.path}: " if problem.path else ""
        meant = f" (did you mean {problem.suggestion!r}?)" if problem.suggestion else ""
        lines.append(f"{place}: {subject}{problem.message}{meant}")
    return "\n".join(lines)


def load(file: Path | str) -> Config:
    """The configuration in `file`; its relative paths are resolved against its folder. Raises ConfigError."""
    file = Path(file)
    text = _read(file)
    try:
        tree, duplicates = parse_tree(text)
    except TreeError as error:
        raise ConfigError(file, [Problem("", error.place.line, error.place.column, error.message)]) from None
    if tree is None or not isinstance(tree.value, dict):
        place = tree.place if tree else Place(1, 1)
        problem = Problem("", place.line, place.column, "the file must have keys such as `pools:` at its top level")
        raise ConfigError(file, [problem])

    problems = [
        Problem(
            dotted(duplicate.path),
            duplicate.place.line,
            duplicate.place.column,
            f"this key was already written in line {duplicate.first.line}: keep one of them",
        )
        for duplicate in duplicates
    ]
    data = tree.plain()
    config: Config | None = None
    try:
        config = Config.model_validate(data, context={"folder": file.absolute().parent, "conflicts_checked": True})
    except ValidationError as error:
        problems += _explained(tree, error)
    for conflict in find_conflicts(data):
        problems.append(_problem(tree, conflict.path, conflict.message))
    problems += _missing_files(tree, data, file.absolute().parent)
    if problems or config is None:
        raise ConfigError(file, sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return config


def _read(file: Path) -> str:
    def failed(message: str) -> ConfigError:
        return ConfigError(file, [Problem("", 0, 0, message)])

    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise failed("no such file") from None
    except IsADirectoryError:
        raise failed("is a folder: name the YAML file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise failed(f"cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise failed(f"is larger than {MAX_FILE_BYTES:,} bytes: too large for a configuration")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(file, [Problem("", line, 1, "not UTF-8: save the file in that encoding")]) from None


def _explained(tree: Node, error: ValidationError) -> Iterator[Problem]:
    for detail in error.errors(include_url=False):
        path = tuple(detail["loc"])
        if detail["type"] == "too_short" and detail["input"]:
            continue  # the list has items, but all are wrong, which has its own message
        message, suggestion = explain(Config, path, detail)
        yield _problem(tree, path, message, suggestion, at_key=detail["type"] == "extra_forbidden")


def _problem(
    tree: Node, path: tuple[Any, ...], message: str, suggestion: str | None = None, *, at_key: bool = False
) -> Problem:
    place = _locate(tree, path, at_key=at_key)
    return Problem(dotted(path), place.line, place.column, message, suggestion)


def _locate(tree: Node, path: tuple[Any, ...], *, at_key: bool) -> Place:
    """The place of the value at `path`, of its key, or of the last value on the way that the file has."""
    node, place = tree, tree.place
    for index, step in enumerate(path):
        value = node.value
        if isinstance(value, dict) and step in value:
            place = node.keys[step]
            node = value[step]
            # An empty value has no place of its own; an item of a list has no key.
            if node.value is not None and not (at_key and index == len(path) - 1):
                place = node.place
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            node = value[step]
            place = node.place
        else:
            break
    return place


def _missing_files(tree: Node, data: Any, folder: Path) -> Iterator[Problem]:
    """Files that the configuration names and that are not there."""
    wanted: list[tuple[tuple[str | int, ...], object]] = []
    listen = data.get("listen")
    tls = listen.get("tls") if isinstance(listen, dict) else None
    if isinstance(tls, dict):
        wanted += [(("listen", "tls", key), tls.get(key)) for key in ("certificate", "key")]
    own = listen.get("processor_tls") if isinstance(listen, dict) else None
    if isinstance(own, dict):  # Envoy's side of it may be on another machine
        wanted += [(("listen", "processor_tls", key), own.get(key)) for key in ("certificate", "key", "client_ca")]
    pools = data.get("pools")
    for index, pool in enumerate(pools if isinstance(pools, list) else ()):
        if isinstance(pool, dict):
            wanted.append((("pools", index, "chat_template"), pool.get("chat_template")))
            tokenizer = pool.get("tokenizer")
            if tokenizer != "worker" and not str(tokenizer).startswith(HUB_PREFIX):
                wanted.append((("pools", index, "tokenizer"), tokenizer))
    for path, name in wanted:
        if not isinstance(name, str) or not name or "\0" in name:
            continue
        file = folder / name
        if path[-1] == "tokenizer" and file.is_dir():
            if not any(next(file.glob(name), None) for name in _TOKENIZER_FILES):
                yield _problem(tree, path, f"the folder {file} has no tokenizer ({', '.join(_TOKENIZER_FILES)})")
        elif not file.is_file():
            what = "file or folder" if path[-1] == "tokenizer" else "file"
            yield _problem(tree, path, f"there is no {what} {file}")
        elif not os.access(file, os.R_OK) and path[1] != "tls":
            yield _problem(tree, path, f"the file {file} may not be read by this user")
