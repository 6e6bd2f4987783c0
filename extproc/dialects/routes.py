"""Which dialect and operation a method and path ask for, from the rows of all dialects.

Paths are compared byte for byte: no trailing slash is added or removed, nothing is percent-decoded, case counts. An id
at the end of a path is everything that follows, slashes included, for names of models hold them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from extproc.dialects.base import Dialect, Inbound, Row
from extproc.ir import ErrorInfo, ErrorKind, Operation

_SHOWN_CHARS = 200

_Methods: TypeAlias = dict[str, list[tuple[Row, Dialect]]]


class Route(Struct, frozen=True):
    """Where a request goes: its dialect, and its operation or the reason why there is none."""

    dialect: Dialect
    inbound: Inbound
    operation: Operation | None = None
    error: ErrorInfo | None = None


class Routes:
    """The table of all dialects' rows."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        """The first dialect answers whom no other claims."""
        self._dialects = dialects
        self._whole: dict[str, _Methods] = {}
        patterns: dict[str, _Methods] = {}
        for dialect in dialects:
            for row in dialect.rows:
                if row.path.endswith("/") or "*" in row.path:
                    methods = patterns.setdefault(_pattern(row), {})
                else:
                    methods = self._whole.setdefault(row.path, {})
                methods.setdefault(row.method, []).append((row, dialect))
        # Of patterns that match the longest says most.
        self._patterns = [(re.compile(pattern), patterns[pattern]) for pattern in sorted(patterns, key=_weight)]

    def find(self, method: str, path: str, headers: Mapping[str, str]) -> Route:
        """The route of a request; `path` is its `:path`, with any query.

        Anything may come here: an empty path and `host:port` (CONNECT) and `*` (OPTIONS) are unknown URLs.
        """
        path, _, query = path.partition("?")
        argument = ""
        methods = self._whole.get(path)
        if methods is None:
            for pattern, candidates in self._patterns:
                if (matched := pattern.fullmatch(path)) and (methods is None or method in candidates):
                    methods, argument = candidates, matched[1]
                    if method in candidates:
                        break
        inbound = Inbound(method, path, query, headers, argument)
        if methods is None:
            shown = f"{method[:_SHOWN_CHARS]} {path[:_SHOWN_CHARS]}"
            error = ErrorInfo(kind=ErrorKind.NOT_FOUND, message=f"Invalid URL ({shown})")
            return Route(self._claimant(inbound), inbound, None, error)
        rows = methods.get(method, ())
        for row, dialect in rows:
            if row.when is None or row.when(inbound):
                return Route(dialect, inbound, row.operation)
        allow = ", ".join(sorted(methods))
        error = ErrorInfo(
            kind=ErrorKind.METHOD_NOT_ALLOWED,
            message=f"Not allowed to {method[:_SHOWN_CHARS]} on this URL (allowed: {allow})",
            allow=allow,
        )
        return Route(self._of_path(methods, inbound), inbound, None, error)

    def _claimant(self, inbound: Inbound) -> Dialect:
        for dialect in self._dialects:
            if dialect.claims(inbound):
                return dialect
        return self._dialects[0]

    def _of_path(self, methods: _Methods, inbound: Inbound) -> Dialect:
        """Whose path it is with another method."""
        rows = [each for found in methods.values() for each in found]
        for row, dialect in rows:
            if row.when is None or row.when(inbound):
                return dialect
        return self._claimant(inbound)


def _pattern(row: Row) -> str:
    """An expression for the whole path, whose only group is the argument."""
    fixed = re.escape(row.path).replace(r"\*", "[^/]+")
    return fixed + ("(.+)" if row.path.endswith("/") else "()") + re.escape(row.ending)


def _weight(pattern: str) -> tuple[int, str]:
    return (-len(pattern), pattern)
