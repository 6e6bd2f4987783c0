"""Kinds of values that the configuration's sections are made of, each with a message that says what to write instead.

Relative paths are resolved against the folder that `extproc.config.load` gives as the validation context, and left
alone without one.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationInfo,
)

from extproc.config.address import (
    Address,
    HostPort,
    UnixPath,
    check_unix_length,
    parse_listen,
    parse_socket,
    parse_worker,
)
from extproc.config.hub import HUB_PREFIX, hub_folder

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def written(value: object) -> Any:
    """A default as a file would have it: it is parsed like any other value."""
    return value


def _text(value: object, such_as: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be {such_as}")
    return value


def _parse_size(value: object) -> int:
    """A number of bytes, or text such as `32MiB`."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"([0-9]{1,15}) ?(|KiB|MiB|GiB)", value) if isinstance(value, str) else None
        if match is None:
            raise ValueError("must be a number of bytes, such as 1048576, or with a unit, such as 32MiB")
        size = int(match[1]) * _UNITS[match[2]]
    if size < 1:
        raise ValueError("must be at least 1 byte")
    return size


def _parse_size_or_none(value: object) -> int:
    """The same, or 0."""
    return 0 if value == 0 and not isinstance(value, bool) else _parse_size(value)


def _resolve(path: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    return path if folder is None else str(Path(folder, path))


def _parse_path(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    text = _text(value, "a path")
    if not text or "\0" in text:
        raise ValueError("must be a path")
    return Path(_resolve(text, info))


def _parse_tokenizer(value: object, info: ValidationInfo) -> Path | Literal["worker"]:
    if value == "worker":
        return "worker"
    return hub_folder(value) if isinstance(value, str) and value.startswith(HUB_PREFIX) else _parse_path(value, info)


def _parse_listen(value: object) -> HostPort:
    return (
        value
        if isinstance(value, HostPort)
        else parse_listen(_text(value, "an IP address with port, such as 127.0.0.1:8080"))
    )


def _parse_worker(value: object) -> HostPort:
    return (
        value
        if isinstance(value, HostPort)
        else parse_worker(_text(value, "an address, such as grpc://10.0.0.1:50051"), http=True)
    )


def _parse_socket(value: object, info: ValidationInfo) -> Address:
    address = (
        value
        if isinstance(value, HostPort | UnixPath)
        else parse_socket(_text(value, "a socket, such as unix:/run/extproc.sock or 127.0.0.1:9002"))
    )
    if isinstance(address, UnixPath):
        address = UnixPath(_resolve(address.path, info))
        check_unix_length(address)
    return address


def _parse_network(value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if isinstance(value, ipaddress.IPv4Network | ipaddress.IPv6Network):
        return value
    text = _text(value, "a network, such as 10.0.0.0/8")
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        instead = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not a network: write one such as 10.0.0.0/8 or ::1/128") from None
    raise ValueError(f"{text!r} has bits set outside its mask: write {instead}")


def _check_pool_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise ValueError(f"{name!r} is not a pool name: use 1 to 63 of a-z, 0-9 and '-', with no '-' at either end")
    if name == "processor":
        raise ValueError("'processor' is the name of the processor's own Envoy cluster: choose another")
    return name


def _check_label(name: str) -> str:
    """A name that is safe in headers, metrics and logs."""
    if not name or len(name) > 256 or not name.isprintable() or name != name.strip():
        raise ValueError("must be 1 to 256 printable characters without spaces at either end")
    return name


def shorthand(key: str) -> BeforeValidator:
    """An item may be the text of its one needed key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


_AS_TEXT = PlainSerializer(str, return_type=str, when_used="json")

Int = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
Size = Annotated[int, PlainValidator(_parse_size)]
FilePath = Annotated[Path, PlainValidator(_parse_path), _AS_TEXT]
SizeOrNone = Annotated[int, PlainValidator(_parse_size_or_none)]
TokenizerSource = Annotated[Path | Literal["worker"], PlainValidator(_parse_tokenizer), _AS_TEXT]
ListenAddress = Annotated[HostPort, PlainValidator(_parse_listen), _AS_TEXT]
WorkerAddress = Annotated[HostPort, PlainValidator(_parse_worker), _AS_TEXT]
SocketAddress = Annotated[Address, PlainValidator(_parse_socket), _AS_TEXT]
Network = Annotated[ipaddress.IPv4Network | ipaddress.IPv6Network, PlainValidator(_parse_network), _AS_TEXT]
Label = Annotated[str, AfterValidator(_check_label)]
PoolName = Annotated[str, AfterValidator(_check_pool_name)]


class Section(BaseModel):
    """What all sections share: immutable, unknown keys are mistakes, defaults pass the same checks as values."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
