"""What a pool of HTTP engines asks of each request: its path, host, credentials, and the models' names there."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from extproc.engines.http_get import HttpAccess

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_MOST_KEY_BYTES = 16 << 10


class ApiKey:
    """A key in a file, which may be replaced. It goes into requests and nowhere else."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._looked_s = float("-inf")
        self._read: tuple[int, int] | None = None  # time and size of what was read
        self._value = ""

    def value(self) -> str:
        """The key; empty where there is none, which the log tells."""
        now_s = monotonic()
        if now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            status = self._file.stat()
            found = (status.st_mtime_ns, status.st_size)
            if found == self._read:
                return
            with self._file.open("rb") as file:
                value = file.read(_MOST_KEY_BYTES).decode("ascii").strip()
        except (OSError, ValueError) as error:
            # What a ValueError says holds a part of the key.
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            _log.error("the engines' key in %s cannot be read: %s", self._file, reason)
            return
        if not value or not value.isprintable():
            _log.error("%s holds no key: write one line of printable characters", self._file)
            return
        self._read, self._value = found, value


class HttpTarget:
    """One pool's."""

    def __init__(
        self,
        *,
        path_prefix: str = "",
        host: str | None = None,
        api_key: ApiKey | None = None,
        asks_usage: bool = True,
        names: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`names`: the engines' names of models, by those that clients write. `tls`: for our own questions."""
        self.path_prefix = path_prefix
        self.asks_usage = asks_usage
        self._host = host
        self._api_key = api_key
        self._names = dict(names or {})
        self._tls = tls
        self._server_name = server_name

    def engine_name(self, model: str) -> str:
        """What the engines call a model that a client names."""
        return self._names.get(model, model)

    def rename(self, engine_name: str) -> None:
        """The engines serve one model, under this name."""
        self._names = dict.fromkeys(self._names, engine_name)

    @property
    def engine_names(self) -> frozenset[str]:
        """All that requests may name."""
        return frozenset(self._names.values())

    def access(self) -> HttpAccess:
        """For our own questions."""
        return HttpAccess(self._host or self._server_name, self._credentials(), self._tls, self._server_name)

    def _credentials(self) -> tuple[tuple[str, str], ...]:
        """The header that opens the engines; none without a key."""
        key = self._api_key.value() if self._api_key is not None else ""
        return (("authorization", f"Bearer {key}"),) if key else ()

    def headers(self) -> tuple[tuple[str, str], ...]:
        """For every request of Envoy's to an engine."""
        host = ((":authority", self._host),) if self._host is not None else ()
        return (*host, *self._credentials())
