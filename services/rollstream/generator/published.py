"""Follows `weights` as versions are published, at a cost that does not grow with the age of the run."""

import threading
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from rollstream.bus.message import KafkaMessage
from rollstream.bus.run import Run
from rollstream.schemas.topics import WEIGHTS
from rollstream.schemas.weights import WeightsPublished

_POLL_SECONDS: Final = 0.2
# A version takes two offsets: its record and the end of its transaction.
_FIRST_BLOCK: Final = 256


class PublishedVersions:
    """Reads `weights` from its end: who joins needs the newest version, hardly ever an old one.

    Gives the versions of the run's model. Records that can't be read are passed over. For one thread, but for `close`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        run.make_codecs(WEIGHTS)
        ((self._partition, (self._first, end)),) = run.bounds(WEIGHTS).items()
        self._num_older = _FIRST_BLOCK
        self._oldest = max(self._first, end - self._num_older)
        self._reader = run.reader(WEIGHTS, start={self._partition: self._oldest}, follows=True)
        self._is_closed = False
        self._reading = threading.Lock()

    @property
    def at_end(self) -> bool:
        """Whether everything was read that is there. Before that the newest version is not known."""
        return self._reader.at_end()

    def newer(self) -> list[WeightsPublished]:
        """What has come since the last call, at first the newest block; waits a moment if there is nothing."""
        with self._reading:
            return [] if self._is_closed else self._readable(self._reader.poll(500, _POLL_SECONDS))

    def older(self) -> list[WeightsPublished] | None:
        """The block before all that was read, oldest first, twice as long as the last one; None at the log's start."""
        if self._oldest == self._first:
            return None
        end = self._oldest
        self._num_older *= 2
        self._oldest = max(self._first, end - self._num_older)
        with self._run.reader(WEIGHTS, start={self._partition: self._oldest}) as reader:
            return self._readable(takewhile(lambda message: message.offset < end, reader.to_end()))

    def close(self) -> None:
        """Read no more. A task that read may have been cancelled while its thread reads on: that is waited for."""
        with self._reading:
            self._is_closed = True
            self._reader.close()

    def _readable(self, messages: Iterable[KafkaMessage]) -> list[WeightsPublished]:
        records = [self._run.decoded(WEIGHTS, message) for message in messages]
        return [record for record in records if record is not None and record.model == self._run.model]
