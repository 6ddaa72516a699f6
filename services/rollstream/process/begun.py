"""Tells who handed out a piece of work with which weight version it began, across everything that lies between.

A stage listens while it handles a record. An engine tells when it begins to sample: that may be long after it was
asked, since a request first waits for a free place. Agents, which users write, stand between both and need not know.
A task has the listener of the task that made it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

Listener = Callable[[int], None]
"""Takes a weight version. It may be told several times: a record has many samples, and a sample many calls."""


def _nobody(_weight_version: int) -> None:
    """Where nobody listens."""


_LISTENER: Final[ContextVar[Listener]] = ContextVar("listener", default=_nobody)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """`listener` is told of all that begins inside the block, and in the tasks that are made there."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def listener() -> Listener:
    """Whom to tell when work of this task begins."""
    return _LISTENER.get()
