"""Which operation a method and path ask for, as a table.

Paths are compared byte for byte: no trailing slash is added or removed, nothing is percent-decoded, case counts. An id
at the end of a path is everything that follows, slashes included, for names of models hold them.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from extproc.ir import ErrorInfo, ErrorKind


class Operation(Enum):
    """What a client can ask for."""

    CHAT_COMPLETIONS = "chat_completions"
    MODEL_LIST = "model_list"
    MODEL_GET = "model_get"


class Route(Struct, frozen=True):
    """An operation, with the id from the path as it came."""

    operation: Operation
    id: str = ""


class Row(Struct, frozen=True):
    """One line of the table. A path that ends in a slash is followed by an id."""

    method: str
    path: str
    operation: Operation


ROWS = (
    Row("POST", "/v1/chat/completions", Operation.CHAT_COMPLETIONS),
    Row("GET", "/v1/models", Operation.MODEL_LIST),
    Row("GET", "/v1/models/", Operation.MODEL_GET),
)

_SHOWN_CHARS = 200


class Routes:
    """The table, ready for look-ups."""

    def __init__(self, rows: tuple[Row, ...] = ROWS) -> None:
        self._exact: dict[str, dict[str, Operation]] = {}
        self._prefixes: dict[str, dict[str, Operation]] = {}
        for row in rows:
            table = self._prefixes if row.path.endswith("/") else self._exact
            table.setdefault(row.path, {})[row.method] = row.operation

    def find(self, method: str, path: str) -> Route | ErrorInfo:
        """The route, or the error to answer with. `path` is as in the request's `:path`, with any query.

        Anything may come here: an empty path and `host:port` (CONNECT) and `*` (OPTIONS) are unknown URLs.
        """
        path = path.partition("?")[0]
        rest = ""
        methods = self._exact.get(path)
        if methods is None:
            for prefix, candidates in self._prefixes.items():
                if path.startswith(prefix) and len(path) > len(prefix):
                    methods = candidates
                    rest = path[len(prefix) :]
                    break
        if methods is None:
            shown = f"{method[:_SHOWN_CHARS]} {path[:_SHOWN_CHARS]}"
            return ErrorInfo(kind=ErrorKind.NOT_FOUND, message=f"Invalid URL ({shown})")
        operation = methods.get(method)
        if operation is None:
            allow = ", ".join(sorted(methods))
            return ErrorInfo(
                kind=ErrorKind.METHOD_NOT_ALLOWED,
                message=f"Not allowed to {method[:_SHOWN_CHARS]} on this URL (allowed: {allow})",
                allow=allow,
            )
        return Route(operation, rest)
