"""Shows that the event loop of a stage runs, and ends the process when it hangs, e.g. in a user's code that blocks.

Other threads go on meanwhile and keep the partitions, so nobody else would do the work. A coroutine that waits for ever
is not seen here: each record has a deadline for that.
"""

import asyncio
import faulthandler
import sys
from collections.abc import Callable
from typing import Final

from rollstream.process.health import Health

HANGS_AFTER_SECONDS: Final = 120.0


async def beat(health: Health, redis_state: Callable[[], str], *, hangs_after: float = HANGS_AFTER_SECONDS) -> None:
    """Beat until cancelled. If the loop hangs for `hangs_after` seconds, the process ends with exit code 1.

    Then the stack of every thread is on standard error. `redis_state` says how Redis is, "" if nobody knows.
    """
    try:
        while True:
            health.heartbeat("event_loop", hangs_after)
            if redis_state():
                # The process is ready without Redis too: Redis holds only what may be lost.
                health.check("redis", True, redis_state())
            # A thread without Python: the code that blocks may hold the interpreter's lock.
            faulthandler.dump_traceback_later(hangs_after, exit=True, file=sys.__stderr__ or sys.stderr)
            await asyncio.sleep(1.0)
    finally:
        faulthandler.cancel_dump_traceback_later()
