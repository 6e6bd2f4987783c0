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


class _EndpointFiles:
    """Envoy's files, compared by what the system says of them: rendering thousands of workers takes its time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: dict[str, tuple[Sequence[str], tuple[int, int]]] = {}

    def write(self, pool: str, addresses: Sequence[str]) -> bool:
        """Whether Envoy has something new to notice. Raises OSError."""
        # Not at the top: it loads all of Envoy's typed messages, which only this needs.
        from extproc.envoyconfig.files import endpoints_file, write_endpoints

        file = self._directory / endpoints_file(pool)
        before = _stamp(file)
        if before is not None and self._written.get(pool) == (addresses, before):
            return False
        changed = write_endpoints(self._directory, pool, [parse_listen(each) for each in addresses])
        after = _stamp(file)
        if after is not None:
            self._written[pool] = (addresses, after)
        # Envoy waits for a file that is not there, so there is nothing that it could still be using.
        return changed and before is not None


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_ino


def build_discovery(config: Config, publish: Callable[[Roster], None], running: Running) -> Discovery:
    """`config`: with its names looked up. Sources of a pool come in the order in which they are believed."""
    files = _EndpointFiles(Path(config.envoy.directory))
    return Discovery(config, publish, running, make_sources, files.write)


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
