"""A request to end the process, which signal handlers make and threads and coroutines see; and `first_to_end`."""

import asyncio
import threading
from collections.abc import Awaitable
from typing import Final

# A signal handler may interrupt any code, so it only sets a flag; coroutines look at it.
_LOOK_EVERY_SECONDS: Final = 0.05


class Stop:
    """The request to end this process; it is never taken back."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked the process to end."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask the process to end; safe in a signal handler."""
        self._asked.set()

    async def asked(self) -> None:
        """Wait until the process is asked to end."""
        while not self.is_asked:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)


async def first_to_end(*awaitables: Awaitable[None]) -> None:
    """Wait until one of them ends, then cancel the others and wait for their end. Raises what the first one raised."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
