"""The end of a process: the wish for it, as signal handlers, threads and coroutines see it, and who ends first."""

import asyncio
import threading
from collections.abc import Awaitable
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


async def first_to_end(*side_by_side: Awaitable[None]) -> None:
    """Wait until one ends, cancel the others and let them end; raises what the first one raised."""
    tasks = [asyncio.ensure_future(one) for one in side_by_side]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
