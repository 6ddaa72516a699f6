"""Ends a process when its parent ends: kill -9 of a stage must not leave its children behind.

`python -I -S parent.py PARENT CORES NICE PROGRAM ARGUMENTS...` runs this as a script. It asks the kernel to end the
process with PARENT, sets cores and priority, and replaces itself by PROGRAM. The usual way, `preexec_fn` of
`subprocess`, runs Python between fork and exec, which may deadlock in a process with threads. With `-I -S` only the
standard library can be imported, so this file imports nothing else.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when the thread of `parent` that started it ends; Linux only."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the request could be made


def main(arguments: list[str]) -> None:
    """Apply the settings and exec. With PARENT 0 the program outlives its parent; CORES "-" keeps those inherited."""
    parent, cores, nice, *command = arguments
    if int(parent):
        die_with(int(parent))
    if cores != "-":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.nice(int(nice))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
