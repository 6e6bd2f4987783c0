"""The processor's log: one line for each event on standard error, as JSON or for people."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog


def configure_logs(level: str, form: Literal["json", "console"], process: int | None = None) -> None:
    """Send everything that the standard library's loggers get to standard error. Called once, by the command.

    `process`: which of several processes this is; every line says so.
    """

    def add_process(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["process"] = process
        return event

    before: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if process is not None:
        before.append(add_process)
    finish: list[structlog.typing.Processor]
    if form == "json":
        finish = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        finish = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
