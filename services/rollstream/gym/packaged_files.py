"""Configurations and rows of this package, at the paths that Gym's documents name."""

from pathlib import Path
from typing import Final

_PACKAGED: Final = Path(__file__).parent / "packaged"


def packaged_or_own(path: Path) -> Path:
    """`path`, or the packaged file of this path if there is none in the working directory."""
    packaged = _PACKAGED / path
    is_packaged = not path.exists() and ".." not in path.parts and packaged.is_file()
    return packaged if is_packaged else path
