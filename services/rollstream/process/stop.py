"""The wish that a process end gracefully, as a signal handler, a thread and a coroutine can all see it."""

import asyncio
import threading
from typing import Final

_LOOK_EVERY_SECONDS: Final = 0.05


class Stop:
    """Asked once, seen by everybody."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether the process shall end."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask for the end; safe in a signal handler."""
        self._asked.set()

    async def asked(self) -> None:
        """Return once the end is asked for."""
        while not self.is_asked:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
