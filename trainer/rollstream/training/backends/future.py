"""`TrainFuture`: what a backend's one thread will have done, so that a caller can go on meanwhile.

Work is done in the order in which it was asked for. After an error, what was asked for before somebody saw it is not
done, and ends with the same error: no update is applied of which a part is missing. Whoever awaits any of these futures
has seen it, and what is asked for from then on is done again. So an error that nobody awaits stops all that follows.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class TrainFuture(Generic[T]):
    """`await future.result()`, or `await future`, gives what the work gave, or raises its error."""

    def __init__(self, work: Future[T], on_seen: Callable[[BaseException], None]) -> None:
        self._work = work
        self._on_seen = on_seen

    def done(self) -> bool:
        """Whether the work has ended, well or not."""
        return self._work.done()

    async def result(self, timeout_seconds: float | None = None) -> T:
        """Wait for the work, for at most `timeout_seconds`: then raises `TimeoutError`, and the work goes on.

        Cancelling the wait does not end the work either.
        """
        waited = asyncio.wrap_future(self._work)
        waited.add_done_callback(lambda one: one.cancelled() or one.exception())  # asyncio logs what nobody looks at
        # Unlike `wait_for` it leaves the work alone when the time is over.
        if not (await asyncio.wait([waited], timeout=timeout_seconds))[0]:
            raise TimeoutError(f"the work has not ended within {timeout_seconds:g} s: it goes on, so wait again")
        if self._work.cancelled():
            raise RuntimeError("the backend was closed before it began this work: await it first, then close")
        error = self._work.exception()
        if error is not None:
            self._on_seen(error)
            raise error
        return self._work.result()

    def __await__(self) -> Generator[Any, None, T]:
        return self.result().__await__()


class Worker:
    """One thread that does a backend's work in order."""

    def __init__(self, on_error: Callable[[], None]) -> None:
        """`on_error` is called in the thread after work that failed, to take back what it left half done."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="training-backend")
        self._on_error = on_error
        # Work of a round that has failed is not done; who sees the error begins the next round.
        self._round = 0
        self._failed: tuple[int, str, BaseException] | None = None

    def submit(self, what: str, work: Callable[[], T]) -> TrainFuture[T]:
        """Ask for work, named `what` in messages; returns at once. Raises RuntimeError once the worker is closed."""
        asked_in = self._round
        try:
            return TrainFuture(self._thread.submit(lambda: self._do(asked_in, what, work)), self._seen)
        except RuntimeError as error:
            raise RuntimeError(f"{what} was asked of a backend that is closed: make a new one") from error

    def close(self) -> None:
        """End the thread when the work that it has begun is done; the rest is cancelled. An error that nobody saw is
        logged."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._failed is not None and self._failed[0] == self._round:
            _LOG.error("%s failed, and nobody awaited it", self._failed[1], exc_info=self._failed[2])

    def _do(self, asked_in: int, what: str, work: Callable[[], T]) -> T:
        if self._failed is not None and asked_in == self._failed[0]:
            raise self._failed[2]
        try:
            return work()
        except BaseException as error:
            error.add_note(f"raised by {what}; what was asked for before somebody saw this was not done")
            self._failed = asked_in, what, error
            self._on_error()
            raise

    def _seen(self, error: BaseException) -> None:
        if self._failed is not None and error is self._failed[2]:
            self._round = self._failed[0] + 1
