"""Named places in the code at which a fault test can kill or stop a process, at the same place in every run."""

import os
import signal
from collections import Counter
from typing import Final

CRASH_AT: Final = "ROLLSTREAM_CRASH_AT"
"""Environment variable that names the crash point; unset in every real run.

`name` kills the process at its first pass, `name:3` at its third. `name:3:SIGSTOP` stops it there instead.
"""

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Send this process SIGKILL, or the signal that the environment variable names, if it names this point."""
    wanted, _, details = os.environ.get(CRASH_AT, "").partition(":")
    if wanted != name:
        return
    count, _, chosen = details.partition(":")
    _passed[name] += 1
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.Signals[chosen or "SIGKILL"])
