"""Runs the checks of one SDK and tells of each. Needs nothing but the standard library: it runs in any environment.

A check is a function whose arguments are options for the SDK's client. Each prints one line of JSON: its name, and the
error where it failed.
"""

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any


def run(checks: Sequence[Callable[[], Any]]) -> None:
    """Every check once, in order; the exit status says whether all held."""
    failed = False
    for check in checks:
        line = {"check": check.__name__}
        try:
            result = check()
            if inspect.isawaitable(result):
                asyncio.run(_awaited(result))
        except Exception:
            line["error"] = traceback.format_exc()
            failed = True
        print(json.dumps(line), flush=True)
    sys.exit(failed)


async def _awaited(result: Any) -> None:
    await result


def raises(kind: type[Exception], call: Callable[[], Any]) -> Any:
    """The exception of that very class which the call must raise."""
    raised: Exception | None = None
    try:
        call()
    except kind as error:
        raised = error
    assert type(raised) is kind, f"{type(raised).__name__} in place of {kind.__name__}: {raised}"
    return raised
