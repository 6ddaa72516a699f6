"""The buffer between Faust's consumer and its stream, bounded by bytes.

Faust bounds it by the number of records alone. Small records need some thousands there, and a record may have 7 MiB.
"""

import math
from typing import Any, Final

import faust
from mode.utils.queues import ThrowableQueue

MAX_BUFFER_BYTES: Final = 64 * 2**20
"""Beyond it lie one record, one batch that is scored, and what one poll has brought: some megabytes a partition."""


class BoundedBuffer(ThrowableQueue):  # type: ignore[misc]  # the library is not typed here
    """A queue of Faust's events that is also full when their values have `MAX_BUFFER_BYTES`.

    Faust stops and resumes fetching by `qsize`. So a large record counts as several.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._num_bytes = 0
        super().__init__(*args, **kwargs)

    def qsize(self) -> int:
        """The number of records, or more if they are large: at `MAX_BUFFER_BYTES` the queue's bound."""
        num_large = math.ceil(self._num_bytes / MAX_BUFFER_BYTES * int(self.maxsize))
        return max(len(self._queue), num_large)

    def clear(self) -> None:
        """Forget everything: Faust does so at a rebalance."""
        super().clear()
        self._num_bytes = 0

    def _put(self, item: Any) -> None:
        super()._put(item)
        self._num_bytes += _size(item)

    def _get(self) -> Any:
        item = super()._get()
        self._num_bytes -= _size(item)
        return item


class BoundedApp(faust.App):  # type: ignore[misc]  # the library is not typed here
    """Faust's application with bounded buffers."""

    def FlowControlQueue(  # noqa: N802 (the library's name)
        self, maxsize: int | None = None, *, clear_on_resume: bool = False
    ) -> BoundedBuffer:
        """Faust calls this to make the buffer of a stream."""
        return BoundedBuffer(maxsize=maxsize, flow_control=self.flow_control, clear_on_resume=clear_on_resume)


def _size(event: Any) -> int:
    return len(event.message.value or b"")
