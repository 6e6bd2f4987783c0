"""CPU time of process trees, as Linux counts it: each process's own clock, good to a microsecond.

The ticks of /proc/PID/stat are 10 ms, too coarse for a run of a few hundred milliseconds of CPU; only what has ended is
read from there.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PARENT, _ENDED = 1, 13  # fields after the command's name: ppid; cutime and cstime of children that were waited for
_SCHED_CLOCK = 2  # CPUCLOCK_SCHED: user and system time of all threads, those included that ended


def used_s(root: int) -> float:
    """User and system time of a process and all its descendants, those included that ended and were waited for."""
    fields = _read_all()
    children: dict[int, list[int]] = {}
    for pid, values in fields.items():
        children.setdefault(int(values[_PARENT]), []).append(pid)
    waiting = [root]
    total_s = 0.0
    while waiting:
        pid = waiting.pop()
        # What clock_getcpuclockid(3) makes of a process id.
        total_s += time.clock_gettime((~pid << 3) | _SCHED_CLOCK)
        total_s += sum(map(int, fields[pid][_ENDED : _ENDED + 2])) * _TICK_S
        waiting += children.get(pid, ())
    return total_s


def _read_all() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                line = (entry / "stat").read_text()
                found[int(entry.name)] = line[line.rindex(")") + 2 :].split()
    return found
