"""What ended a process that nobody foresaw: the machine, which a sentence explains, or a defect, with its traceback."""

import errno
import os
import re
import resource
from importlib.metadata import PackageNotFoundError, requires
from typing import Final

from rollstream.schemas.errors import ConfigurationError, MachineError, RollstreamError

# Calls that no machine would refuse to right code; a closed pipe is its reader's wish.
_DEFECTS: Final = frozenset({None, errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENOTTY, errno.EPIPE})
# Libraries tell a lack only in words, as errors of many kinds: an import that finds no memory is an ImportError.
_MEMORY: Final = ("cannot allocate memory", "can't allocate memory", "unable to allocate", "out of memory",
                  "failed to map segment")  # fmt: skip
_LONGEST_SAID: Final = 500


def known_cause(error: BaseException) -> RollstreamError | None:
    """What ended a process as an error of this project, with its exit code; None for a defect.

    What the machine refused is no defect: a file that was deleted, too few open files, no memory, a full disk.
    """
    if isinstance(error, RollstreamError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return known_cause(error.exceptions[0])
    is_of_machine = isinstance(error, MemoryError | OSError | ImportError | RuntimeError)
    return _of_machine(error) if is_of_machine else None


def _of_machine(error: BaseException) -> RollstreamError | None:
    said = f"{type(error).__name__}: {error}".partition("\n")[0][:_LONGEST_SAID]
    if advice := _advice(error, said.lower()):
        return MachineError(f"{said}; {advice}")
    if isinstance(error, OSError) and error.errno not in _DEFECTS:
        return MachineError(f"{said}; bring it back or permit it: the next start says what else is wrong")
    if isinstance(error, ImportError):
        missing = _missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
        return missing or ConfigurationError(f"{said}; install it, or install rollstream again")
    return None


def _advice(error: BaseException, said: str) -> str | None:
    """What to change where the machine has too little of something."""
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or code == errno.ENOMEM or any(words in said for words in _MEMORY):
        return f"no memory is left (`ulimit -v`: {_limit(resource.RLIMIT_AS)} bytes): give the process more"
    if code in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE).lower() in said:
        return f"too few files may be open (`ulimit -n`: {_limit(resource.RLIMIT_NOFILE)}): raise the bound"
    if code == errno.EAGAIN or "can't start new thread" in said:
        bounds = f"`ulimit -u`: {_limit(resource.RLIMIT_NPROC)}, `ulimit -v`: {_limit(resource.RLIMIT_AS)} bytes"
        return f"too few threads may run, or no memory is left for one ({bounds}): raise the bound, or the pod's"
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "the disk or the quota is full: free space"
    return None


def _limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "no bound" if soft == resource.RLIM_INFINITY else str(soft)


def _missing_extra(error: ModuleNotFoundError) -> ConfigurationError | None:
    """What to install; None if the package that was not found comes with no extra, as with code of the user."""
    package = _normalized((error.name or "").partition(".")[0])
    extras = sorted({extra for name, extra in _required() if _normalized(name) == package})
    if not extras:
        return None
    return ConfigurationError(
        f"{error.name} is not installed here, which this command needs: it comes with the extra {' or '.join(extras)} "
        f"(`uv sync --extra {extras[0]}`)"
    )


def _required() -> list[tuple[str, str]]:
    """Packages of this project's extras, each with its extra."""
    try:
        words = requires("rollstream") or []
    except PackageNotFoundError:
        return []
    found = (re.match(r"""([\w.-]+).*extra == ['"]([\w-]+)['"]""", word) for word in words)
    return [(match[1], match[2]) for match in found if match]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
