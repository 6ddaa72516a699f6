"""By when the engine ends the requests of a task, across the agent that makes them.

Agents, which users write, stand between whoever sets the deadline of a sample and the engine, and need not know.
A task has the deadline of the task that made it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final

from rollstream.schemas.errors import EngineLateError

_ENDS_AT: Final[ContextVar[float | None]] = ContextVar("ends_at", default=None)


@contextmanager
def requests_end_at(moment: float) -> Iterator[None]:
    """Requests made inside the block end at this time of `time.monotonic()`."""
    token = _ENDS_AT.set(moment)
    try:
        yield
    finally:
        _ENDS_AT.reset(token)


def task_ends_at() -> float | None:
    """When the requests of this task end, by `time.monotonic()`; None: whenever they are answered."""
    return _ENDS_AT.get()


def is_over(ends_at: float | None) -> bool:
    """Whether it is that late."""
    return ends_at is not None and time.monotonic() >= ends_at


@asynccontextmanager
async def before_the_end(ends_at: float | None) -> AsyncIterator[None]:
    """What nothing was sampled in: raises `EngineLateError` if the block is not done in time."""
    try:
        async with asyncio.timeout(None if ends_at is None else ends_at - time.monotonic()):
            yield
    except TimeoutError:
        raise nothing_sampled() from None


def nothing_sampled() -> EngineLateError:
    """The error of a request that has no token at its deadline."""
    return EngineLateError("neither an answer nor a token came by the request's deadline")
