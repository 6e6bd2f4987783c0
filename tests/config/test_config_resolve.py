"""Workers named by host become addresses before Envoy hears of them."""

from __future__ import annotations

import pytest

from extproc.config.address import HostPort
from extproc.config.resolve import ResolveError, look_up, resolve_workers
from extproc.config.schema import Config


def config(*workers: object) -> Config:
    return Config(pools=[{"name": "chat", "models": ["tiny"], "workers": list(workers)}])


def table(host: str) -> str:
    addresses = {"engine-0": "10.0.0.10", "engine-1": "fd00::11", "same": "10.0.0.10"}
    if host not in addresses:
        raise OSError(-2, "Name or service not known")
    return addresses[host]


def test_names_are_looked_up_and_kept_as_labels() -> None:
    resolved = resolve_workers(config("engine-0:1", "engine-1:1", "10.0.0.12:1"), table)
    workers = resolved.pools[0].workers
    assert [str(worker.address) for worker in workers] == ["10.0.0.10:1", "[fd00::11]:1", "10.0.0.12:1"]
    assert [worker.label for worker in workers] == ["engine-0:1", "engine-1:1", "10.0.0.12:1"]


def test_every_name_that_is_not_found_is_named() -> None:
    with pytest.raises(ResolveError) as caught:
        resolve_workers(config("gone:1", "engine-0:1", "lost:1"), table)
    assert str(caught.value).splitlines() == [
        "the worker gone:1 cannot be looked up: Name or service not known",
        "the worker lost:1 cannot be looked up: Name or service not known",
    ]


def test_two_names_of_one_worker_are_refused() -> None:
    with pytest.raises(ResolveError, match=r"engine-0:1 and same:1 are both at 10\.0\.0\.10:1"):
        resolve_workers(config("engine-0:1", "same:1"), table)


def test_the_local_host_is_found_by_ipv4_first() -> None:
    assert look_up("localhost") == "127.0.0.1"
    assert HostPort(look_up("::1"), 1) == HostPort("::1", 1)
