"""YAML text to a tree of values that know their lines and columns.

The dialect is YAML 1.2's core schema: `on`, `no` and `12:30` are text, not a boolean and not a number of minutes as in
PyYAML's YAML 1.1. Nothing here recurses, and an alias costs what it stands for, so a hostile file fails early.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_FILE_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DEPTH = 32

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,30}|0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,300}|[0-9]{1,300}(\.[0-9]{0,300})?)([eE][-+]?[0-9]{1,4})?")
_TEXT_TAG = "tag:yaml.org,2002:str"

Scalar = None | bool | int | float | str


@dataclass(frozen=True, slots=True)
class Place:
    """Where something begins in the file, both counted from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Node:
    """A value: a scalar, a list of nodes, or a mapping of keys to nodes with the places of the keys."""

    place: Place
    value: Scalar | list[Node] | dict[str, Node]
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1  # how many nodes it stands for, aliases written out
    height: int = 1

    def plain(self) -> object:
        """The tree as dicts, lists and scalars. At most MAX_DEPTH deep."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class TreeError(Exception):
    """The text is no usable YAML, and nothing more can be said about the rest of it."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A key written twice in one mapping; the first one is kept."""

    path: tuple[str | int, ...]
    place: Place
    first: Place


@dataclass(slots=True)
class _Open:
    """A list or mapping that is still being read."""

    node: Node
    path: tuple[str | int, ...]
    anchor: str | None
    key: str | None = None
    key_place: Place | None = None


def parse_tree(text: str) -> tuple[Node | None, list[Duplicate]]:
    """The document, None for an empty one, and the keys that it repeats. Raises TreeError."""
    try:
        return _Reader().read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise TreeError(_place(mark), _explain(error.problem or "not readable")) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise TreeError(Place(line, column), "a control character, which YAML does not allow: remove it") from None


class _Reader:
    def __init__(self) -> None:
        self._root: Node | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._duplicates: list[Duplicate] = []
        self._nodes = 0

    def read(self, text: str) -> tuple[Node | None, list[Duplicate]]:
        documents = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            place = _place(event.start_mark)
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event, place)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                _refuse_tag(event.tag, place)
                empty: dict[str, Node] | list[Node] = {} if isinstance(event, yaml.MappingStartEvent) else []
                if len(self._open) >= MAX_DEPTH:
                    raise TreeError(place, f"nested more than {MAX_DEPTH} levels deep")
                self._count(1, place)
                path = self._path(place)
                self._open.append(_Open(Node(place, empty), path, event.anchor))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                done = self._open.pop()
                if done.anchor:
                    self._anchors[done.anchor] = done.node
                self._add(done.node, place)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(str(event.anchor), place)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise TreeError(place, "a second document begins here: a configuration is one document")
        return self._root, self._duplicates

    def _scalar(self, event: yaml.ScalarEvent, place: Place) -> None:
        if self._awaits_key():
            self._open[-1].key, self._open[-1].key_place = event.value, place
            if event.value == "<<" and event.implicit[0]:
                raise TreeError(place, "merge keys (<<) are not supported: write the keys out")
            return
        self._count(1, place)
        plain = event.implicit[0] and event.tag is None
        if not plain and event.tag not in (None, "!", _TEXT_TAG):
            _refuse_tag(event.tag, place)
        node = Node(place, _resolve(event.value) if plain else event.value)
        if event.anchor:
            self._anchors[event.anchor] = node
        self._add(node, place)

    def _alias(self, anchor: str, place: Place) -> None:
        node = self._anchors.get(anchor)
        if node is None:
            raise TreeError(place, f"*{anchor} names nothing: write &{anchor} before the value that it repeats")
        if self._awaits_key():
            raise TreeError(place, "a key cannot be an alias: write it out")
        if len(self._open) + node.height > MAX_DEPTH:
            raise TreeError(place, f"nested more than {MAX_DEPTH} levels deep")
        self._count(node.size, place)
        self._add(node, place)

    def _add(self, node: Node, place: Place) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        parent.node.size += node.size
        parent.node.height = max(parent.node.height, node.height + 1)
        value = parent.node.value
        if isinstance(value, list):
            value.append(node)
        elif isinstance(value, dict) and parent.key is not None and parent.key_place is not None:
            key, key_place = parent.key, parent.key_place
            if key in value:
                self._duplicates.append(Duplicate((*parent.path, key), key_place, parent.node.keys[key]))
            else:
                value[key] = node
                parent.node.keys[key] = key_place
            parent.key = None

    def _path(self, place: Place) -> tuple[str | int, ...]:
        if not self._open:
            return ()
        parent = self._open[-1]
        if isinstance(parent.node.value, list):
            return (*parent.path, len(parent.node.value))
        if parent.key is None:
            raise TreeError(place, "a key must be plain text; is a {…} meant that should be in quotes?")
        return (*parent.path, parent.key)

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].node.value, dict) and self._open[-1].key is None

    def _count(self, nodes: int, place: Place) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise TreeError(
                place, f"more than {MAX_NODES:,} values, aliases written out: too large for a configuration"
            )


def _place(mark: Any) -> Place:  # one of two Mark classes, or None
    if mark is None:
        return Place(1, 1)
    return Place(mark.line + 1, mark.column + 1)


def _refuse_tag(tag: str | None, place: Place) -> None:
    if tag is not None and tag != "!":
        raise TreeError(
            place, f"tags such as {tag.replace('tag:yaml.org,2002:', '!!')} are not supported: leave it out"
        )


def _resolve(text: str) -> Scalar:
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _explain(problem: str) -> str:
    """PyYAML's words for the mistakes that people make most, with what to do."""
    if "\\t" in problem:
        return "a tab: indent with spaces"
    if "mapping values are not allowed" in problem:
        return "a ':' is not expected here: check the indentation, and put text that contains ': ' in quotes"
    if "could not find expected ':'" in problem:
        return "a ':' is missing after the key on the line before"
    if "expected <block end>" in problem:
        return "the indentation does not fit the lines before: align the keys of one section, and the '-' of one list"
    if "that cannot start any token" in problem:
        return f"{problem}: put the text in quotes"
    if "found unexpected end of stream" in problem:
        return "the file ends inside quotes: a closing quote is missing"
    if "expected the node content" in problem:
        return "a value is missing here"
    if "expected ',' or" in problem:
        return "a ',' or a closing bracket is missing here"
    return f"not readable as YAML: {problem}"
