"""What is said about workers, their checks and their load is checked like everything else in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_config_load import problems, write

from extproc.config.load import load


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("pools: [{name: p, models: [m]}]", "pools[0]", "neither `workers` nor `discover`"),
        ("pools: [{name: p, models: [m], discover: {}}]", "pools[0]", "`workers: []` if they are to come"),
        ("pools: [{name: p, models: [m], discover: {dns: {name: x}}}]", "pools[0].discover.dns", "port"),
        (
            "pools: [{name: p, models: [m], discover: {dns: {name: 'a b', port: 1}}}]",
            "pools[0].discover.dns.name",
            "no host name",
        ),
        (
            "pools: [{name: p, models: [m], engine: mlx, workers: [{address: '10.0.0.1:1', ranks: 2}]}]",
            "pools[0].workers[0].ranks",
            "requests to mlx cannot name a rank: leave `ranks` out",
        ),
        (
            "pools: [{name: p, models: [m], engine: mlx, discover: {dns: {name: x, port: 1, ranks: 2}}}]",
            "pools[0].discover.dns.ranks",
            "cannot name a rank",
        ),
        (
            "pools: [{name: p, models: [m], workers: [], http_health: {path: health}}]",
            "pools[0].http_health.path",
            "/health",
        ),
        (
            "pools: [{name: p, models: [m], workers: [], overload: {worker_requests: 0}}]",
            "pools[0].overload",
            "at least 1",
        ),
        (
            "tenants: {header: X-Tenant}\npools: [{name: p, models: [m], workers: []}]",
            "tenants.header",
            "in lower case",
        ),
        (
            "health: {breaker_failures: -1}\npools: [{name: p, models: [m], workers: []}]",
            "health.breaker_failures",
            "at least 0",
        ),
    ],
)
def test_a_mistake_is_named_at_its_place(tmp_path: Path, text: str, place: str, words: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert place in str(problem)
    assert words in str(problem)


def test_a_pool_may_have_only_workers_that_are_found(tmp_path: Path) -> None:
    config = load(write(tmp_path, "pools: [{name: p, models: [m], discover: {file: engines.yaml}}]"))
    assert config.pools[0].discover.file == tmp_path / "engines.yaml"
    assert config.pools[0].workers == ()
    assert not config.pools[0].overload.capped
