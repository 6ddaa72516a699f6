"""Named places where a fault test can kill a process exactly there: deterministic beats random."""

import os
import signal
from collections import Counter
from typing import Final

CRASH_AT: Final = "ROLLSTREAM_CRASH_AT"
"""Environment variable with the point to die at, `name` or `name:3` for the third time; unset in every real run."""

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """SIGKILL this process if the environment asks for it here."""
    wanted, _, count = os.environ.get(CRASH_AT, "").partition(":")
    if wanted != name:
        return
    _passed[name] += 1
    if _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
