"""`--processes`: in place of the configuration's `processes`, for the commands that must agree on it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from extproc.cli.errors import CommandError

if TYPE_CHECKING:
    from extproc.config.schema import Config

_log = logging.getLogger(__name__)

Processes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=64,
        help="How many processes share the work, in place of the configuration's `processes`. The commands serve and "
        "envoy-config must be given the same.",
    ),
]


def with_processes(config: Config, processes: int | None) -> Config:
    """The configuration with another number of processes. Raises CommandError where their sockets clash."""
    if processes is None or processes == config.processes:
        return config
    from pydantic import ValidationError

    try:
        return type(config).model_validate({**config.model_dump(mode="json"), "processes": processes})
    except ValidationError as error:
        reasons = "; ".join(detail["msg"] for detail in error.errors(include_url=False))
        raise CommandError(f"--processes {processes} cannot be used: {reasons}") from None


def warn_of_other_sockets(config: Config) -> None:
    """Say so where Envoy's files, if they are in their folder, do not name exactly the sockets that are served."""
    from extproc.envoyconfig.names import PROCESSOR_CLUSTER

    bootstrap = Path(config.envoy.directory) / "bootstrap.yaml"
    try:
        content = yaml.load(bootstrap.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        clusters = content["static_resources"]["clusters"]
        (cluster,) = [cluster for cluster in clusters if cluster["name"] == PROCESSOR_CLUSTER]
        localities = cluster["load_assignment"]["endpoints"]
        named = sum(len(locality["lb_endpoints"]) for locality in localities)
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError):
        return  # not there, or not written by us
    served = len(config.all_sockets)
    if named != served:
        _log.warning(
            "%s names %d sockets of the processor, and it serves on %d: write it anew with "
            "`extproc envoy-config --processes %d`, and restart Envoy",
            bootstrap,
            named,
            served,
            config.processes,
        )
