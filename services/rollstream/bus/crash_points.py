"""Named places where a fault test can kill a process exactly there: deterministic beats random."""

import os
import signal
from typing import Final

CRASH_AT: Final = "ROLLSTREAM_CRASH_AT"
"""Environment variable with the name of the point to die at; unset in every real run."""


def crash_point(name: str) -> None:
    """SIGKILL this process if the environment asks for it here."""
    if os.environ.get(CRASH_AT) == name:
        os.kill(os.getpid(), signal.SIGKILL)
