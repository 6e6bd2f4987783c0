"""Where a server listens: `unix:/path` or `host:port`."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

SOCKET_MODE = 0o660
DIRECTORY_MODE = 0o750
_UNIX_PATH_LIMIT_BYTES = 103 if sys.platform == "darwin" else 107  # without the closing zero byte


class ListenError(Exception):
    """The address cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket."""

    path: Path


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP port; 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(listen: str) -> UnixAddress | TcpAddress:
    """Read `unix:/path`, `host:port` or `[ipv6]:port`. Raises ListenError."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        if not path.startswith("/"):
            raise ListenError(f"{listen!r}: a Unix socket needs an absolute path, such as unix:/run/extproc/0.sock")
        if len(os.fsencode(path)) > _UNIX_PATH_LIMIT_BYTES:
            raise ListenError(f"{listen!r}: the path of a Unix socket has at most {_UNIX_PATH_LIMIT_BYTES} bytes")
        return UnixAddress(Path(path))
    host, colon, port = listen.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ListenError(f"{listen!r}: write host:port, [ipv6]:port or unix:/path")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ListenError(f"{listen!r}: {port!r} is not a port; 0 to 65535, 0 for any free one")
    return TcpAddress(host[1:-1] if bracketed else host, int(port))


def prepare_unix_path(path: Path) -> None:
    """Create the directory, and remove a socket that nobody answers on. Raises ListenError where somebody does."""
    try:
        path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"unix:{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"unix:{path}: exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        code = probe.connect_ex(str(path))
    if code == errno.ECONNREFUSED:
        path.unlink(missing_ok=True)
    elif code != errno.ENOENT:
        reason = "another process answers on it" if code in (0, errno.EAGAIN) else os.strerror(code)
        raise ListenError(f"unix:{path}: {reason}")


def bind_unix(path: Path) -> socket.socket:
    """A bound socket, not yet listening, so that nobody can connect before its mode is set."""
    prepare_unix_path(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(str(path))
        path.chmod(SOCKET_MODE)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise ListenError(f"unix:{path}: {error.strerror}") from error
    return bound


@dataclass(frozen=True, slots=True)
class SocketFile:
    """A socket's file as we made it. A successor may have put its own in the same place: that one stays."""

    path: Path
    inode: int

    @classmethod
    def of(cls, path: Path) -> SocketFile:
        """Note the file that is there now."""
        return cls(path, path.lstat().st_ino)

    def remove(self) -> None:
        """Unlink it, if it is still ours."""
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self.inode:
                self.path.unlink()
