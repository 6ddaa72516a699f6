"""Asks a stage on this machine whether it is ready."""

import urllib.error
import urllib.request
from typing import Final

_ANSWER_SECONDS: Final = 5.0


def is_ready(port: int) -> bool:
    """Whether a stage that serves on this port says that it is ready; False too where none answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=_ANSWER_SECONDS) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
