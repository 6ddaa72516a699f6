"""Which producer has which source, and which process is the producer now. Pure.

Two producers of one source would have every prompt generated twice. So each claims its source by its records on
`producers`, and reads those of the others. Of two that claim one source the first keeps it. Of two processes of one
name the later one goes on, as a restarted one must. All see the records in the same order, and come to the same result.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from rollstream.schemas.errors import ConfigurationError, FencedError
from rollstream.schemas.producer import ProducerProgress

_LOG = logging.getLogger(__name__)
_CLOCKS_DIFFER: Final = timedelta(days=1)


class Claims:
    """The newest record of each producer, seen by one process of the producer `name`, which reads `source`."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source
        self._newest: dict[str, ProducerProgress] = {}
        self.incarnation: int | None = None
        """Number of this process; None until it has claimed."""
        self.claimed_at: datetime | None = None

    @property
    def own(self) -> ProducerProgress | None:
        """The newest record of this name."""
        return self._newest.get(self._name)

    def note(self, record: ProducerProgress, now: datetime) -> None:
        """Take in the next record of `producers`; see `claim` for what it raises once this process has claimed."""
        if record.incarnation > _microseconds(now + _CLOCKS_DIFFER):
            _LOG.warning("passed over a record of producer %s: its incarnation lies in the future", record.producer)
            return
        older = self._newest.get(record.producer)
        # A process that was replaced may still write.
        if older is None or older.incarnation <= record.incarnation:
            self._newest[record.producer] = record
        if self.incarnation is not None:
            self._check()

    def claim(self, now: datetime) -> None:
        """Become the producer of this name.

        Raises `ConfigurationError` if another producer has the source, `FencedError` if another process of this name
        came later.
        """
        own = self.own
        self.claimed_at = own.claimed_at if own is not None and own.source == self._source else now
        self.incarnation = max(_microseconds(now), 0 if own is None else own.incarnation + 1)
        self._check()

    def _check(self) -> None:
        own = self.own
        if own is not None and self.incarnation is not None and own.incarnation > self.incarnation:
            raise FencedError(
                f"a later process runs as producer {self._name!r}, so this one ends: run each producer once, or give "
                "each a `name` and a source of its own"
            )
        for other in self._newest.values():
            if other.producer != self._name and other.source == self._source and self._is_before(other):
                raise ConfigurationError(
                    f"producer {other.producer!r} has had the source {self._source!r} since {other.claimed_at}: a "
                    f"second producer would submit every prompt again. Set name = {other.producer!r} to go on where it "
                    "is, or another source: a path, a split, or a seed with which the environment gives other tasks"
                )

    def _is_before(self, other: ProducerProgress) -> bool:
        assert self.claimed_at is not None
        return (other.claimed_at, other.producer) < (self.claimed_at, self._name)


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)
