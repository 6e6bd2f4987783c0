"""A discovery with the sources that a configuration names, and Envoy's files behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from extproc.config.address import parse_listen
from extproc.config.schema import Config, Pool
from extproc.discovery.discovery import Discovery
from extproc.discovery.dns_source import DnsSource
from extproc.discovery.file_source import FileSource
from extproc.discovery.kubernetes_source import KubernetesSource
from extproc.discovery.roster import Roster, Running, Source


def build_discovery(config: Config, publish: Callable[[Roster], None], running: Running) -> Discovery:
    """`config`: with its names looked up. Sources of a pool come in the order in which they are believed."""
    directory = Path(config.envoy.directory)

    def write(pool: str, addresses: Sequence[str]) -> bool:
        # Not at the top: it loads all of Envoy's typed messages, which only this needs.
        from extproc.envoyconfig.files import endpoints_file, write_endpoints

        # Envoy waits for a file that is not there, so there is nothing that it could still be using.
        existed = (directory / endpoints_file(pool)).exists()
        return write_endpoints(directory, pool, [parse_listen(each) for each in addresses]) and existed

    return Discovery(config, publish, running, make_sources, write)


def make_sources(pool: Pool) -> Mapping[str, Source]:
    """By their name in messages."""
    discover = pool.discover
    sources: dict[str, Source] = {}
    if discover.file is not None:
        sources["file"] = FileSource(discover.file)
    if discover.dns is not None:
        sources["dns"] = DnsSource(discover.dns)
    if discover.kubernetes is not None:
        sources["kubernetes"] = KubernetesSource(discover.kubernetes)
    return sources
