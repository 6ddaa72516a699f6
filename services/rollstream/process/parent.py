"""Ends a process when its parent ends: kill -9 of a stage must not leave its children behind.

`python -I -S parent.py PARENT CORES NICE PROGRAM ARGUMENTS...` runs this as a script. It asks the kernel to end the
process with PARENT, sets cores and priority, and replaces itself by PROGRAM. The usual way, `preexec_fn` of
`subprocess`, runs Python between fork and exec, which may deadlock in a process with threads. With `-I -S` only the
standard library can be imported, so this file imports nothing else.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from functools import cache
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_forking = threading.local()


def die_with(parent: int) -> None:
    """Ask the kernel to SIGKILL this process when the thread of `parent` that started it ends; Linux only."""
    if sys.platform == "linux" and _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the request could be made


def die_with_ancestor(ancestor: int) -> None:
    """End this process and its parent with `ancestor`, which may be the parent or one further up; Linux only.

    A spawned process between them knows nothing of its parent's end, and would hold its GPU for ever.
    """
    parent = os.getppid()
    if parent == ancestor:
        die_with(ancestor)
        return
    die_with(parent)
    try:
        handle = os.pidfd_open(ancestor)
    except ProcessLookupError:
        _end_with_parent(parent)
    threading.Thread(target=_end_after, args=(handle, parent), name="ancestor", daemon=True).start()


def _end_after(handle: int, parent: int) -> None:
    select.select([handle], [], [])  # readable once that process has ended
    _end_with_parent(parent)


def _end_with_parent(parent: int) -> NoReturn:
    with contextlib.suppress(ProcessLookupError):
        os.kill(parent, signal.SIGKILL)
    os._exit(1)


@cache
def end_forks_with_this_process() -> None:
    """From now on each process that the main thread forks ends with this one, from its first instruction on.

    A request that the child makes later, once it runs, comes too late if this process is killed while the child starts.
    """
    _libc()  # now, because a fork of a process with threads should load nothing
    os.register_at_fork(before=_note_parent, after_in_child=_die_with_noted_parent)


def _note_parent() -> None:
    # The kernel looks at the thread. One that ends earlier than its process would take its children with it.
    is_main = threading.current_thread() is threading.main_thread()
    _forking.parent = os.getpid() if is_main else None


def _die_with_noted_parent() -> None:
    if _forking.parent is not None:
        die_with(_forking.parent)


def keep_others_out() -> None:
    """Let no other process of this user trace this one, or read its memory and first environment; Linux only.

    Only root still may. For a process that starts code of others: the child has the same user. Programs that are
    executed from now on are not affected.
    """
    if sys.platform == "linux" and _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) was refused")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


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
