"""Ties a process's life to its parent's: kill -9 of a stage must not leave its children behind.

As a script, `python -I -S parent.py PARENT CORES NICE PROGRAM ARGUMENTS...`, it does so for any program, sets its
cores, and becomes it. The usual place for this (`preexec_fn`) runs Python between fork and exec, which may deadlock in
a process with threads. A script started so finds nothing but the standard library, so this file imports nothing else.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel SIGKILL this process when the thread of `parent` that started it ends; only Linux can."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the request could be made


def main(arguments: list[str]) -> None:
    """Apply the settings and exec; PARENT 0 outlives its parent, CORES "-" keeps the inherited ones."""
    parent, cores, nice, *command = arguments
    if int(parent):
        die_with(int(parent))
    if cores != "-":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.nice(int(nice))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
