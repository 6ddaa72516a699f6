"""A thread for what blocks and is for one thread alone, such as a database."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class OwnThread:
    """Runs functions one after the other. Unlike an executor's thread it never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def run(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises. One that has not begun when its caller is cancelled never does."""
        future: Future[T] = Future()
        self._waiting.put((function, future))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            function, future = self._waiting.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 (for whoever waits)
                future.set_exception(error)
            else:
                future.set_result(result)
