"""Small helpers around the typed messages."""

from __future__ import annotations

from datetime import timedelta

from betterproto2 import Message
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.google.protobuf import Any

from extproc.config.address import Address, UnixPath

NEVER = timedelta(0)
"""Envoy's way to switch a timeout off."""


def seconds(value: float) -> timedelta:
    """A duration field."""
    return timedelta(seconds=value)


def extension(name: str, message: Message) -> core.TypedExtensionConfig:
    """A named extension with its configuration."""
    return core.TypedExtensionConfig(name=name, typed_config=Any.pack(message))


def address(value: Address) -> core.Address:
    """A socket's address."""
    if isinstance(value, UnixPath):
        return core.Address(pipe=core.Pipe(path=value.path))
    return core.Address(socket_address=core.SocketAddress(address=value.host, port_value=value.port))


def watched(path: str, directory: str) -> core.ConfigSource:
    """Resources from a file that is replaced by rename inside `directory`."""
    return core.ConfigSource(
        resource_api_version=core.ApiVersion.V3,
        path_config_source=core.PathConfigSource(path=path, watched_directory=core.WatchedDirectory(path=directory)),
    )
