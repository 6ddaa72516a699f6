"""A producer among the others: its claim on `producers`, and its credit by `ledger`. Every kind of producer has one.

A record of either topic that can't be read or can't be true is passed over. Then the producer goes on, and says so in
its readiness.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rollstream.bus.deliveries import Deliveries
from rollstream.bus.message import KafkaMessage, OutRecord, Partition
from rollstream.bus.publisher import Publisher
from rollstream.bus.run import Run
from rollstream.history.passing import skipped_by
from rollstream.process.health import Health
from rollstream.producers.claims import Claims
from rollstream.producers.credit import Credit, CreditMark
from rollstream.producers.plausible import LogEnds
from rollstream.producers.sources.identity import INGESTED
from rollstream.schemas.errors import InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.producer import ProducerProgress
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import INGEST_PROMPTS, LEDGER, PRODUCERS, PROMPTS, SERVE_PROMPTS, Topic

_LOG = logging.getLogger(__name__)


class FoldedEntry(NamedTuple):
    """An entry of the ledger that counts, and the own groups that it closed."""

    entry: LedgerEntry
    own: tuple[str, ...]


class Standing:
    """Claim and credit of the producer `name`, which reads `source`; `share`: most groups that it may have open."""

    def __init__(self, run: Run, name: str, source: str, *, share: int, health: Health) -> None:
        self._run = run
        self._name = name
        self._source = source
        self._health = health
        self.claims = Claims(name, source)
        self.credit = Credit(share)
        # Offsets of entries that do not count.
        self._skipped: set[int] = set()

    def claim(self) -> Mapping[Partition, int]:
        """Become the producer of this name, and take its credit from its newest record.

        Returns the place on `producers` to read on from. Raises what `Claims.claim` raises.
        """
        with self._run.reader(PRODUCERS) as reader:
            for message in reader.to_end():
                self._note_claim(message)
            read_to = reader.positions()
        self.claims.claim(utc_now(), self._log_ends())
        self._report_refused()
        own = self.claims.own
        if own is not None:
            mark = CreditMark(
                ledger_offset=own.ledger_offset, open_groups=own.open_groups, recently_closed=own.recently_closed
            )
            self.credit = Credit(self.credit.share, mark)
        return read_to

    def take_in(self, message: KafkaMessage) -> FoldedEntry | None:
        """Note a record of `producers`, or fold an entry of the ledger into the credit and return it, if it counts.

        Raises `InconsistentLedgerError` if the whole ledger must be read again, and what `Claims.note` raises.
        """
        if message.topic == self._run.topic(PRODUCERS):
            self._note_claim(message)
            return None
        entry = None if message.offset in self._skipped else self._run.decoded(LEDGER, message)
        return None if entry is None else self._folded(entry, message)

    def start_in(self, topic: Topic[Any], offsets: Mapping[int, int]) -> dict[Partition, int]:
        """The wanted offsets, as far as the topic has them: old records are deleted."""
        bounds = self._run.bounds(topic).items()
        return {partition: min(max(offsets.get(partition[1], 0), first), end) for partition, (first, end) in bounds}

    def progress(self, **place: Any) -> ProducerProgress:
        """The record of this producer: its claim, its credit, and where it is in its source."""
        mark = self.credit.mark()
        assert self.claims.incarnation is not None
        assert self.claims.claimed_at is not None
        return ProducerProgress(
            producer=self._name,
            incarnation=self.claims.incarnation,
            source=self._source,
            claimed_at=self.claims.claimed_at,
            open_groups=mark.open_groups,
            recently_closed=mark.recently_closed,
            ledger_offset=mark.ledger_offset,
            written_at=utc_now(),
            **place,
        )

    def _note_claim(self, message: KafkaMessage) -> None:
        record = self._run.decoded(PRODUCERS, message) if message.value is not None else None
        if record is not None:
            appended_at = datetime.fromtimestamp(message.timestamp_ms / 1000, UTC)
            self.claims.note(record, appended_at, self._log_ends)
            self._report_refused()

    def _log_ends(self) -> LogEnds:
        # Another producer of the source may pose its rows on the other topic.
        prompts: dict[int, int] = {}
        for (_, number), end in [*self._run.ends(PROMPTS).items(), *self._run.ends(SERVE_PROMPTS).items()]:
            prompts[number] = max(end, prompts.get(number, 0))
        ingested = sum(self._run.ends(INGEST_PROMPTS).values()) if self._source.startswith(INGESTED) else None
        return LogEnds(prompts=prompts, ledger=sum(self._run.ends(LEDGER).values()), ingested=ingested)

    def _report_refused(self) -> None:
        if count := self.claims.num_refused:
            self._health.check(
                "producers", True, f"{count} records there can't be true and are passed over: see the log"
            )

    def _folded(self, entry: LedgerEntry, message: KafkaMessage) -> FoldedEntry | None:
        named = {place.offset for place in skipped_by(entry) if place.topic == LEDGER.name}
        if not named <= self._skipped:
            self._skipped |= named
            self._health.check("ledger", True, "repaired")
            raise InconsistentLedgerError(f"the ledger was repaired: its entries at {sorted(named)} do not count")
        if entry.kind is EntryKind.SKIP:
            return None
        try:
            return FoldedEntry(entry, self.credit.fold_in(entry, message.offset))
        except InconsistentLedgerError as error:
            if not self.credit.is_whole:
                raise
            # Anybody may have written it, so it must not end this process. A trainer judges it at its next start.
            self._health.check("ledger", False, f"see `rollstream ledger check`: {error}")
            _LOG.error("passed over an entry of the ledger: %s", error, extra=message.place())
            return None


def published(publisher: Publisher, records: Sequence[OutRecord]) -> dict[Partition, int]:
    """Publish the records. Returns where they end, once the broker has confirmed them."""
    deliveries = Deliveries()
    for record in records:
        publisher.send_blocking(record, deliveries)
    deliveries.wait()
    return deliveries.ends
