"""Builds the files that Envoy reads, and puts them into its folder.

    DIRECTORY/bootstrap.yaml      the listener, the processor's cluster, where the rest is; read once
    DIRECTORY/cds.yaml            a cluster for each pool; watched
    DIRECTORY/eds/POOL.yaml       the pool's workers; watched
    DIRECTORY/sds/NAME.yaml       which certificates are for the processor, where it has TLS; watched, as those are

Envoy notices a file only when it appears by rename in the watched folder, and then it needs half a second. It refuses
clusters whose endpoint file is missing, so endpoints are written first.
"""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml
from betterproto2 import Casing, Message
from envoy_data_plane.envoy.config.bootstrap import v3 as bootstrap
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.overload import v3 as overload
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections import v3 as connections
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.google.protobuf import Any

from extproc.config.address import Address, HostPort
from extproc.config.schema import Config, Pool
from extproc.envoyconfig.clusters import build_endpoints, build_pool, build_processor
from extproc.envoyconfig.listener import build_listener
from extproc.envoyconfig.typed import address, watched
from extproc.envoyconfig.upstream_tls import build_secrets, build_upstream_tls

BOOTSTRAP = "bootstrap.yaml"
CLUSTERS = "cds.yaml"
ENDPOINTS = "eds"
SECRETS = "sds"


@dataclass(frozen=True, slots=True)
class EnvoyFiles:
    """Contents by file name, relative to the folder, in the order in which they must be written."""

    contents: Mapping[str, str]
    kept: frozenset[str] = frozenset()
    """Names of files that stay as they are if they exist: endpoints that the processor finds, and knows better."""


def build(config: Config, processor_addresses: Sequence[Address] | None = None) -> EnvoyFiles:
    """All files of one configuration, which Envoy will look for in `config.envoy.directory`.

    `processor_addresses` says where Envoy reaches the processor if that is not where it listens. Workers must be IP
    addresses (`extproc.config.resolve`); raises ValueError for others.
    """
    sockets = config.all_sockets if processor_addresses is None else processor_addresses
    contents = {endpoints_file(pool.name): render_endpoints(pool.name, _addresses(pool)) for pool in config.pools}
    contents[CLUSTERS] = _render(_clusters(config))
    if config.listen.processor_tls is not None:
        secrets = build_secrets(config.listen.processor_tls)
        contents |= {_secret_file(name): _render(_resources([secret])) for name, secret in secrets.items()}
    contents[BOOTSTRAP] = _render(_bootstrap(config, [_reachable(socket) for socket in sockets]))
    found = frozenset(endpoints_file(pool.name) for pool in config.pools if pool.discover.any)
    return EnvoyFiles(contents, found)


def write(files: EnvoyFiles, directory: Path) -> list[Path]:
    """Put all files into `directory`, made if missing, and take away the endpoints of pools that are gone.

    A file whose content is the same is not touched. Returns what was written. Raises OSError.
    """
    written = [
        directory / name
        for name, content in files.contents.items()
        if not (name in files.kept and (directory / name).exists()) and _replace(directory / name, content)
    ]
    for left in (directory / ENDPOINTS).glob("*.yaml"):
        if f"{ENDPOINTS}/{left.name}" not in files.contents:
            left.unlink(missing_ok=True)
    return written


def write_endpoints(directory: Path, pool: str, workers: Sequence[HostPort]) -> bool:
    """Put a pool's workers into its file. False if they are there already. Raises OSError."""
    return _replace(directory / endpoints_file(pool), render_endpoints(pool, workers))


def endpoints_file(pool: str) -> str:
    """The name of a pool's endpoint file, relative to the folder."""
    return f"{ENDPOINTS}/{pool}.yaml"


def render_endpoints(pool: str, workers: Sequence[HostPort]) -> str:
    """The content of a pool's endpoint file: the same for the same workers in any order.

    Only the first goes through Envoy's typed messages, which take 2 ms a worker while others wait for the interpreter;
    the rest are made like it. Raises ValueError for host names.
    """
    ordered = sorted(workers)
    whole = [worker for worker in ordered if not worker.is_ip] or ordered[:1]
    plain = _plain(_resources([build_endpoints(pool, whole)]))
    if ordered:
        (group,) = plain["resources"][0]["endpoints"]
        (first,) = group["lb_endpoints"]
        group["lb_endpoints"] = [_at(first, worker) for worker in ordered]
    return _dump(plain)


def _at(example: dict[str, typing.Any], worker: HostPort) -> dict[str, typing.Any]:
    """A worker's endpoint in plain form, like another's."""
    where = {**example["endpoint"]["address"]["socket_address"], "address": worker.host, "port_value": worker.port}
    return {**example, "endpoint": {**example["endpoint"], "address": {"socket_address": where}}}


def _addresses(pool: Pool) -> list[HostPort]:
    return [worker.address for worker in pool.workers]


def _clusters(config: Config) -> discovery.DiscoveryResponse:
    folder = PurePosixPath(config.envoy.directory)
    return _resources(
        [
            build_pool(
                pool.name,
                str(folder / endpoints_file(pool.name)),
                str(folder / ENDPOINTS),
                config.envoy,
                pool.http if pool.engine == "openai" else None,
            )
            for pool in config.pools
        ]
    )


def _bootstrap(config: Config, processor_addresses: Sequence[Address]) -> bootstrap.Bootstrap:
    folder = PurePosixPath(config.envoy.directory)
    encryption = None
    if config.listen.processor_tls is not None:
        secret_files = {name: str(folder / _secret_file(name)) for name in build_secrets(config.listen.processor_tls)}
        encryption = build_upstream_tls(config.listen.processor_tls, secret_files, str(folder / SECRETS))
    ceiling = connections.DownstreamConnectionsConfig(max_active_downstream_connections=config.envoy.max_connections)
    return bootstrap.Bootstrap(
        # Resources from files need a node.
        node=core.Node(id=config.envoy.node_id, cluster=config.envoy.node_cluster),
        admin=bootstrap.Admin(address=address(config.listen.admin), ignore_global_conn_limit=True),
        static_resources=bootstrap.BootstrapStaticResources(
            listeners=[build_listener(config)],
            clusters=[build_processor(processor_addresses, config.envoy, encryption)],
        ),
        dynamic_resources=bootstrap.BootstrapDynamicResources(cds_config=watched(str(folder / CLUSTERS), str(folder))),
        overload_manager=overload.OverloadManager(
            resource_monitors=[
                overload.ResourceMonitor(
                    name="envoy.resource_monitors.global_downstream_max_connections", typed_config=Any.pack(ceiling)
                )
            ]
        ),
    )


def _secret_file(name: str) -> str:
    return f"{SECRETS}/{name}.yaml"


def _resources(messages: Sequence[Message]) -> discovery.DiscoveryResponse:
    return discovery.DiscoveryResponse(resources=[Any.pack(message) for message in messages])


def _reachable(socket: Address) -> Address:
    """Where to connect to what listens at `socket`."""
    if isinstance(socket, HostPort) and socket.is_wildcard:
        return HostPort("::1" if ":" in socket.host else "127.0.0.1", socket.port)
    return socket


def _render(message: Message) -> str:
    return _dump(_plain(message))


def _plain(message: Message) -> dict[str, typing.Any]:
    return message.to_dict(casing=Casing.SNAKE)


def _dump(plain: dict[str, typing.Any]) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, seven times faster
    return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, width=120, allow_unicode=True))


def _replace(file: Path, content: str) -> bool:
    """Put `content` in place of `file` in one step, so that nobody ever reads half of it."""
    with contextlib.suppress(FileNotFoundError):
        if file.read_bytes() == content.encode():
            return False
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(content, encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
    return True
