"""Which producer has which source, and which process is the producer now. Pure.

Two producers of one source would have every prompt generated twice. So each claims its source by its records on
`producers`, and reads those of the others. Of two that claim one source the first keeps it. Of two processes of one
name the later one goes on, as a restarted one must. All see the records in the same order, and come to the same result.

A record that can't be true is passed over, and counted (`plausible.py`).
"""

import logging
from collections.abc import Callable
from datetime import datetime

from rollstream.producers import metrics
from rollstream.producers.plausible import (
    CLOCKS_DIFFER,
    LogEnds,
    is_early,
    microseconds,
    why_not_after,
    why_not_further,
    why_untrue,
)
from rollstream.schemas.errors import ConfigurationError, FencedError
from rollstream.schemas.producer import ProducerProgress

_LOG = logging.getLogger(__name__)


class Claims:
    """The newest record of each producer, seen by one process of the producer `name`, which reads `source`."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source
        self._found: list[tuple[ProducerProgress, datetime]] = []
        self._newest: dict[str, ProducerProgress] = {}
        self._had_it_before = False
        self.num_refused = 0
        """Records that can't be true."""
        self.own_of_source: ProducerProgress | None = None
        """The newest record of this name and source that can be true."""
        self.incarnation: int | None = None
        """Number of this process; None until it has claimed."""
        self.claimed_at: datetime | None = None

    @property
    def own(self) -> ProducerProgress | None:
        """The newest record of this name that can be true."""
        return self._newest.get(self._name)

    def note(self, record: ProducerProgress, appended_at: datetime, ends: Callable[[], LogEnds]) -> None:
        """Take in the next record of `producers`; see `claim` for what it raises once this process has claimed.

        `appended_at`: the broker's time. `ends` asks where the log ends now.
        """
        is_own = record.producer == self._name
        if not is_own:
            # Only its claim matters; the groups are many.
            record = record.model_copy(update={"open_groups": (), "recently_closed": ()})
        if self.incarnation is None:
            self._found.append((record, appended_at))
        elif is_own and record.incarnation == self.incarnation:
            self._check_clock(appended_at)
        elif is_own or record.source == self._source:
            self._take_in(record, appended_at, ends())
            self._check()
        else:
            self._newest.pop(record.producer, None)

    def claim(self, now: datetime, ends: LogEnds) -> None:
        """Become the producer of this name.

        Raises `ConfigurationError` if another producer has the source, `FencedError` if another process of this name
        came later. `ends`: where the log ends, asked after all of `producers` was read.
        """
        for record, appended_at in self._found:
            if record.producer == self._name or record.source == self._source:
                self._take_in(record, appended_at, ends)
            else:
                self._newest.pop(record.producer, None)
        self._found.clear()
        own = self.own
        self._had_it_before = own is not None and own.source == self._source
        self.claimed_at = own.claimed_at if own is not None and self._had_it_before else now
        self.incarnation = max(microseconds(now), 0 if own is None else own.incarnation + 1)
        self._check()
        # From here on nobody can have had the source long before: it would have been seen.
        self._had_it_before = True

    def _take_in(self, record: ProducerProgress, appended_at: datetime, ends: LogEnds) -> None:
        older = self._newest.get(record.producer)
        before = None if older is None else (older.source, older.claimed_at)
        if record.producer == self._name and self.claimed_at is not None:
            before = (self._source, self.claimed_at)
        furthest = self.own_of_source if record.producer == self._name else older
        why = (
            why_untrue(record, appended_at, ends)
            or (before and why_not_after(record, *before))
            or (furthest and why_not_further(record, furthest))
        )
        if why:
            self._refuse(record, why)
        # A process that was replaced may still write.
        elif older is None or older.incarnation <= record.incarnation:
            self._newest[record.producer] = record
            if record.producer == self._name and record.source == self._source:
                self.own_of_source = record

    def _refuse(self, record: ProducerProgress, why: str) -> None:
        self.num_refused += 1
        metrics.REFUSED.inc()
        _LOG.warning("passed over a record of producer %s that can't be true: %s", record.producer, why)

    def _check_clock(self, appended_at: datetime) -> None:
        """Whoever copies this process's number can't make it too large: so it is this machine's clock."""
        if self.incarnation is not None and is_early(self.incarnation, appended_at):
            raise ConfigurationError(
                f"this machine's clock is more than 10 minutes ahead of the broker's, which says {appended_at}: set "
                "it, or what this producer writes would not be believed after a restart"
            )

    def _check(self) -> None:
        own = self.own
        if own is not None and self.incarnation is not None and own.incarnation > self.incarnation:
            raise FencedError(
                f"a later process runs as producer {self._name!r}, so this one ends: run each producer once, or give "
                "each a `name` and a source of its own"
            )
        for other in [one for name, one in self._newest.items() if name != self._name]:
            if not self._is_before(other):
                continue
            if self._is_impossibly_early(other):
                self._refuse(other, f"claimed_at {other.claimed_at}: this producer found the source free later")
                del self._newest[other.producer]
                continue
            raise ConfigurationError(
                f"producer {other.producer!r} has had the source {self._source!r} since {other.claimed_at}: a "
                f"second producer would submit every prompt again. Set name = {other.producer!r} to go on where it "
                "is, or another source: a path, a split, or a seed with which the environment gives other tasks"
            )

    def _is_before(self, other: ProducerProgress) -> bool:
        assert self.claimed_at is not None
        return (other.claimed_at, other.producer) < (self.claimed_at, self._name)

    def _is_impossibly_early(self, other: ProducerProgress) -> bool:
        """Whether this producer, when it first claimed the source, would have seen the other's claim."""
        assert self.claimed_at is not None
        return self._had_it_before and other.claimed_at < self.claimed_at - CLOCKS_DIFFER
