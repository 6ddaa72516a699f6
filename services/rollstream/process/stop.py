"""A request to end the process, which signal handlers make and threads and coroutines see; and what acts on it."""

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final

_LOG = logging.getLogger(__name__)

# A signal handler may interrupt any code, so it only sets a flag; coroutines look at it.
_LOOK_EVERY_SECONDS: Final = 0.05
_ENDS_SECONDS: Final = 10.0


class Stop:
    """The request to end this process; it is never taken back."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask the process to end; safe in a signal handler."""
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the process is asked to end; whether it was asked."""
        # `Event.wait` holds a lock now and then, on which a handler that interrupts it would wait for ever.
        due = time.monotonic() + seconds
        while not self.is_asked and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_EVERY_SECONDS))
        return self.is_asked

    async def asked(self) -> None:
        while not self.is_asked:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)


@contextmanager
def ending_within(stop: Stop, seconds: float = _ENDS_SECONDS) -> Iterator[None]:
    """End the process `seconds` after `stop` was asked, with exit code 0, if the block has not ended by then.

    For what blocks and can't be told to end, e.g. a question that no broker answers. Nothing may be lost by it: no work
    was taken yet, or a kill would lose nothing either. Child processes are killed.
    """
    has_ended = threading.Event()

    def watch() -> None:
        while not stop.is_asked:
            if has_ended.wait(_LOOK_EVERY_SECONDS):
                return
        if not has_ended.wait(seconds):
            _LOG.info("this has not ended %g s after the request to stop: the process ends now", seconds)
            logging.shutdown()
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(0)

    # A daemon: an error of the block must not wait for it.
    threading.Thread(target=watch, name="ending", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()


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
