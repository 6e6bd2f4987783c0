"""Runs a command that cannot outlive the process which started it, however that one ends.

    python -I -S tether.py exec PARENT_PID [--signal NAME] COMMAND...
    python -I -S tether.py watch LIFELINE_FD COMMAND...

A program of its own, with the standard library only: it stands between the starter and any command, Envoy included.

exec   Linux: asks the kernel for a signal at the parent's death (SIGKILL unless another is named), then becomes the
       command. Nothing stays in between. Elsewhere: becomes the command, untethered.
watch  elsewhere: stays beside the command, passes signals on to it, and kills the whole process group when the pipe
       whose writing end only the parent holds is closed.

Exit status: the command's own; 128 + n after signal n; 127 if the command cannot be started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h. The request survives exec, but not a set-uid program."""


def become(parent: int, death_signal: int, command: list[str]) -> None:
    """Replace this process by the command, which dies with `parent`. Returns only on failure."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the request was made: then no signal ever comes.
    if os.getppid() != parent:
        os._exit(128 + death_signal)
    os.execvp(command[0], command)  # noqa: S606


def watch(lifeline: int, command: list[str]) -> int:
    """Run the command until it ends or the lifeline is closed. Returns its exit status."""
    child = subprocess.Popen(command)

    def pass_on(number: int, _frame: object) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)

    def await_end_of_lifeline() -> None:
        os.read(lifeline, 1)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=await_end_of_lifeline, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


def main(arguments: list[str]) -> int:
    """Run as the module's description says."""
    mode, anchor, *command = arguments
    try:
        if mode == "watch":
            return watch(int(anchor), command)
        death_signal = signal.SIGKILL
        if command[0] == "--signal":
            death_signal = signal.Signals[f"SIG{command[1]}"]
            command = command[2:]
        become(int(anchor), death_signal, command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
