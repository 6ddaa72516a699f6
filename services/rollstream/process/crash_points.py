"""Named places where a fault test can kill or stop a process exactly there: deterministic beats random."""

import os
import signal
from collections import Counter
from typing import Final

CRASH_AT: Final = "ROLLSTREAM_CRASH_AT"
"""Environment variable with the point to die at: `name`, `name:3` for the third time there, `name:3:SIGSTOP` to stop
there instead; unset in every real run."""

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Send this process SIGKILL, or the signal asked for, if the environment asks for it here."""
    wanted, _, details = os.environ.get(CRASH_AT, "").partition(":")
    if wanted != name:
        return
    count, _, chosen = details.partition(":")
    _passed[name] += 1
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.Signals[chosen or "SIGKILL"])
