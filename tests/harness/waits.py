"""Waiting for what other processes and threads do: for a condition, with a deadline."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

DEADLINE_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.05


def wait_until(
    look: Callable[[], T],
    what: str | Callable[[], str],
    seconds: float = DEADLINE_SECONDS,
    *,
    every_seconds: float = LOOK_EVERY_SECONDS,
) -> T:
    """Look until the answer is true, and return it; past the deadline AssertionError says `what` was waited for.

    A `what` that is a function is asked once the time is up.
    """
    began = looked = time.monotonic()
    while not (answer := look()):
        took = time.monotonic() - looked
        if time.monotonic() - began > seconds:
            raise AssertionError(f"waited {seconds} s for {what if isinstance(what, str) else what()}")
        # Whoever is waited for needs the cores more: look for at most a third of the time.
        time.sleep(max(every_seconds, 2 * took))
        looked = time.monotonic()
    return answer


async def until(look: Callable[[], T], what: str, *, task: "asyncio.Task[None] | None" = None) -> T:
    """The same for a test that runs in an event loop: looks from a thread, and fails as soon as `task` ended."""

    def look_while_it_runs() -> T:
        if task is not None and task.done():
            task.result()
            raise AssertionError(f"it ended before {what}")
        return look()

    return await asyncio.to_thread(wait_until, look_while_it_runs, what)


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """A test that is a coroutine, run in an event loop of its own."""

    @wraps(test)
    def run(*fixtures: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*fixtures, **named))

    return run
