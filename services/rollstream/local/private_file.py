"""Writes files that no other user of the machine may read: settings may hold passwords and keys."""

import os
from pathlib import Path
from typing import Literal


def write_private(path: Path, text: str, mode: Literal["w", "x"] = "w") -> None:
    """Write `text`; "x" refuses a file that is there. It is private before its first byte is written."""
    with open(path, mode, encoding="utf-8", opener=_open) as file:
        os.fchmod(file.fileno(), 0o600)  # one that was there keeps its own otherwise
        file.write(text)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
