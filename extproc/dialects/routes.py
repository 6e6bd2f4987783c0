"""Which operation a method and path ask for, as a table.

Paths are compared byte for byte: no trailing slash is added or removed, nothing is percent-decoded, case counts. An id
at the end of a path is everything that follows, slashes included, for names of models hold them.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from extproc.ir import ErrorInfo, ErrorKind, RequestError


class Operation(Enum):
    """What a client can ask for."""

    CHAT_COMPLETIONS = "chat_completions"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    LIST_MODELS = "list_models"
    GET_MODEL = "get_model"


class Route(Struct, frozen=True):
    """An operation, and the id from the path as it came."""

    operation: Operation
    argument: str = ""


class Row(Struct, frozen=True):
    """One line of the table. A path that ends in a slash is followed by an id."""

    method: str
    path: str
    operation: Operation


ROWS = (
    Row("POST", "/v1/chat/completions", Operation.CHAT_COMPLETIONS),
    Row("POST", "/tokenize", Operation.TOKENIZE),
    Row("POST", "/v1/tokenize", Operation.TOKENIZE),
    Row("POST", "/detokenize", Operation.DETOKENIZE),
    Row("POST", "/v1/detokenize", Operation.DETOKENIZE),
    Row("GET", "/v1/models", Operation.LIST_MODELS),
    Row("GET", "/v1/models/", Operation.GET_MODEL),
)

_SHOWN_CHARS = 200


_Methods: TypeAlias = dict[str, Operation]


def _tables() -> tuple[dict[str, _Methods], dict[str, _Methods]]:
    """Whole paths, and beginnings that an id follows."""
    whole: dict[str, _Methods] = {}
    beginnings: dict[str, _Methods] = {}
    for row in ROWS:
        table = beginnings if row.path.endswith("/") else whole
        table.setdefault(row.path, {})[row.method] = row.operation
    return whole, beginnings


_WHOLE, _BEGINNINGS = _tables()


def find_route(method: str, path: str) -> Route:
    """The route of a request; `path` is its `:path`, with any query. Raises RequestError.

    Anything may come here: an empty path and `host:port` (CONNECT) and `*` (OPTIONS) are unknown URLs.
    """
    path = path.partition("?")[0]
    argument = ""
    methods = _WHOLE.get(path)
    if methods is None:
        for beginning, candidates in _BEGINNINGS.items():
            if path.startswith(beginning) and len(path) > len(beginning):
                methods = candidates
                argument = path[len(beginning) :]
                break
        else:
            shown = f"{method[:_SHOWN_CHARS]} {path[:_SHOWN_CHARS]}"
            raise RequestError(ErrorInfo(kind=ErrorKind.NOT_FOUND, message=f"Invalid URL ({shown})"))
    operation = methods.get(method)
    if operation is None:
        allow = ", ".join(sorted(methods))
        raise RequestError(
            ErrorInfo(
                kind=ErrorKind.METHOD_NOT_ALLOWED,
                message=f"Not allowed to {method[:_SHOWN_CHARS]} on this URL (allowed: {allow})",
                allow=allow,
            )
        )
    return Route(operation, argument)
