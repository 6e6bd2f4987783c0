"""Addresses as people write them: `host:port`, `[::1]:port`, `grpc://host:port`, `unix:/path`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_HOST_NAME = re.compile(r"(?=.{1,253}$)(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_UNIX_PATH_BYTES = 107  # sun_path holds 108 with its terminator; macOS holds less and says so itself


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """A TCP address. `host` is an IP address without brackets, in its shortest form, or a host name."""

    host: str
    port: int

    def __str__(self) -> str:
        """As Envoy writes it: IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_ip(self) -> bool:
        """False for a host name, which somebody has to look up first."""
        return _as_ip(self.host) is not None

    @property
    def is_wildcard(self) -> bool:
        """True for 0.0.0.0 and [::], which are for listening only."""
        ip = _as_ip(self.host)
        return ip is not None and ip.is_unspecified

    @property
    def is_loopback(self) -> bool:
        """True where only this machine can connect."""
        ip = _as_ip(self.host)
        return self.host == "localhost" or (ip is not None and ip.is_loopback)


@dataclass(frozen=True, slots=True, order=True)
class UnixPath:
    """A Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = HostPort | UnixPath


def of_process(address: Address, process: int) -> Address:
    """The socket of one of several processes, from 0: `p.sock` becomes `p-0.sock`, `p-1.sock` …; the port counts up."""
    if isinstance(address, HostPort):
        return HostPort(address.host, address.port + process)
    folder, slash, name = address.path.rpartition("/")
    stem, dot, ending = name.rpartition(".")
    numbered = f"{stem}-{process}{dot}{ending}" if stem else f"{name}-{process}"
    return UnixPath(folder + slash + numbered)


def parse_host_port(text: str) -> HostPort:
    """`host:port` with an IPv4 address, an IPv6 address in brackets or a host name. Raises ValueError."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not rest.startswith(":"):
            raise ValueError(f"{text!r} is not an address: write an IPv6 address as [::1]:9000")
        ip = _as_ip(host)
        if ip is None or ip.version != 6:
            raise ValueError(f"{host!r} in brackets is not an IPv6 address")
        return HostPort(str(ip), _parse_port(text, rest[1:]))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r} has no port: write host:port")
    if not host:
        raise ValueError(
            f"{text!r} has no host: write 0.0.0.0{text} for all interfaces, 127.0.0.1{text} for this machine"
        )
    if ":" in host:
        hint = f": write [{host}]:{port}" if _as_ip(host) else ""
        raise ValueError(f"{text!r} is not host:port; an IPv6 address goes in brackets{hint}")
    number = _parse_port(text, port)
    ip = _as_ip(host)
    if ip is not None:
        return HostPort(str(ip), number)
    if re.fullmatch(r"[0-9.]+", host):
        raise ValueError(f"{host!r} is not an IPv4 address")
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r} is neither an IP address nor a host name")
    return HostPort(host.lower(), number)


def parse_listen(text: str) -> HostPort:
    """An address to listen at, or of a peer that is never looked up: its host is an IP address. Raises ValueError."""
    address = parse_host_port(text)
    if not address.is_ip:
        instead = f"127.0.0.1:{address.port}" if address.host == "localhost" else f"0.0.0.0:{address.port}"
        raise ValueError(f"{address.host!r} is a host name: write an IP address, such as {instead}")
    return address


def parse_socket(text: str) -> Address:
    """`unix:/path` or an IP address with port. Raises ValueError."""
    if not text.startswith("unix:"):
        return parse_listen(text)
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    if not path or path.endswith("/") or "\0" in path or path.startswith("@"):
        raise ValueError(f"{text!r} names no socket file: write unix:/folder/name.sock")
    return UnixPath(path)


def check_unix_length(address: UnixPath) -> None:
    """The kernel's limit, for a path that is already absolute. Raises ValueError."""
    length = len(address.path.encode())
    if length > _UNIX_PATH_BYTES:
        raise ValueError(f"the socket's path is {length} bytes long and may have {_UNIX_PATH_BYTES}: {address.path}")


def parse_worker(text: str, *, http: bool = False) -> HostPort:
    """A worker's address, `host:port`, `grpc://host:port` or with `http` also `http://host:port`. Raises ValueError."""
    scheme, separator, rest = text.partition("://")
    if separator:
        if http and scheme == "https":
            raise ValueError(f"{text!r}: write http://{rest.rstrip('/')}, and how to trust it in the pool's http.tls")
        if scheme != "grpc" and not (http and scheme == "http"):
            raise ValueError(f"{text!r}: workers speak gRPC without TLS; write grpc://{rest.rstrip('/')}")
        text = rest.rstrip("/")
    address = parse_host_port(text)
    if address.is_wildcard:
        raise ValueError(f"{text!r} is an address to listen at; write the one at which the worker is reached")
    return address


def _as_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if "%" in host:  # a zone means something on one machine only, and Envoy takes none
        return None
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _parse_port(text: str, port: str) -> int:
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return int(port)
