"""Tools of a user's own, for tests: they are imported in the process that runs them."""

import os
import subprocess
import time
from typing import Any, Literal

from pydantic import BaseModel


class Place(BaseModel):
    """Where to put."""

    row: int
    column: int = 0


class Box:
    """A box with a number in it. `key` is a secret."""

    def __init__(self, key: str = "", broken: str = "") -> None:
        if broken == "made":
            raise ValueError(f"no box for {key}")
        self._key, self._broken, self._total, self._task = key, broken, 0, {}

    def begin(self, task: dict[str, Any]) -> None:
        self._task = task

    def verify(self, said: dict[str, Any]) -> Any:
        if self._broken == "verify":
            return "well done"
        return {"reward": float(self._total), "task": self._task, "said": said}

    def close(self) -> None:
        if self._broken == "close":
            time.sleep(1000)

    def add(self, by: int, how: Literal["up", "down"] = "up") -> int:
        """Add to the number."""
        self._total += by if how == "up" else -by
        return self._total

    async def put(self, at: Place) -> dict[str, int]:
        """Put it somewhere."""
        return {"row": at.row}

    def fail(self) -> None:
        """Raise."""
        raise ValueError(f"the key {self._key} does not open it")

    def give(self, num_bytes: int) -> str:
        """Give much."""
        return "x" * num_bytes

    def fill(self, num_bytes: int) -> int:
        """Take much memory."""
        return len(bytearray(num_bytes))

    def odd(self) -> Any:
        """Give what is no JSON."""
        return object()

    def half(self) -> str:
        """Give half of a surrogate pair."""
        return "\ud800"

    def exit(self) -> None:
        """End the process."""
        os._exit(3)

    def hang(self) -> None:
        """Never answer, and leave another process that does not end either."""
        subprocess.Popen(["sleep", "1000"])
        time.sleep(1000)

    def pid(self) -> int:
        """The process."""
        return os.getpid()


class Nothing:
    """A class without tools."""


class Many:
    """A class whose tool can't be called by name."""

    def add(self, *numbers: int) -> int:
        """Add."""
        return sum(numbers)
