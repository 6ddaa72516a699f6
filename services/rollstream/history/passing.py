"""Reads `weights` and `ledger` past the records that do not count.

A record that can't be read, or that contradicts earlier ones, changes nothing. It is a `LedgerProblem`, unless an entry
of kind skip says to pass over it: `rollstream ledger check` shows problems, `repair` writes such an entry
(`repair.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from rollstream.bus.message import KafkaMessage
from rollstream.bus.run import Run
from rollstream.schemas.errors import DecodeError, InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry
from rollstream.schemas.record import Record
from rollstream.schemas.topics import LEDGER, WEIGHTS, Topic
from rollstream.schemas.weights import WeightsPublished

R = TypeVar("R", bound=Record)
T = TypeVar("T")


class RecordPlace(NamedTuple):
    """Where a record of `weights` or `ledger` lies; `topic` without the run's name. Written as `ledger@17`."""

    topic: str
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.offset}"


class LedgerProblem(NamedTuple):
    """A record that changes nothing although it lies on a topic where every record counts."""

    place: RecordPlace
    error: DecodeError | InconsistentLedgerError


@dataclass(slots=True, kw_only=True)
class Passing:
    """One pass over both topics, without the records at `skipped`. `named`: those that entries of kind skip name.

    `starts`: the offset to begin with, by topic; absent: from its start. `ends`: the next offset of what was read.
    """

    run: Run
    skipped: frozenset[RecordPlace]
    starts: Mapping[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    named: set[RecordPlace] = field(default_factory=set)
    problems: list[LedgerProblem] = field(default_factory=list)

    def weights(self) -> Iterator[tuple[KafkaMessage, WeightsPublished]]:
        """Every version that can be read, to the end."""
        return self._records(WEIGHTS)

    def entries(
        self, add: Callable[[LedgerEntry, datetime | None], object]
    ) -> Iterator[tuple[KafkaMessage, LedgerEntry]]:
        """Every entry that `add` takes, to the end. It raises `InconsistentLedgerError` for one that contradicts.

        It also gets the broker's time at which the entry was appended.
        """
        for message, entry in self._records(LEDGER):
            try:
                add(entry, append_time(message.timestamp_ms))
            except InconsistentLedgerError as error:
                self._note(LEDGER, message, error)
            else:
                self.named |= skipped_by(entry)
                yield message, entry

    def _records(self, topic: Topic[R]) -> Iterator[tuple[KafkaMessage, R]]:
        codec, partition = self.run.codec(topic), (self.run.topic(topic), 0)
        start = {partition: self.starts[topic.name]} if topic.name in self.starts else None
        with self.run.reader(topic, start=start) as reader:
            for message in reader.to_end():
                if RecordPlace(topic.name, message.offset) in self.skipped:
                    continue
                try:
                    record = codec.decode(message.checked_value())
                except DecodeError as error:
                    self._note(topic, message, error)
                else:
                    yield message, record
            self.ends[topic.name] = reader.positions()[partition]

    def _note(self, topic: Topic[Any], message: KafkaMessage, error: DecodeError | InconsistentLedgerError) -> None:
        self.problems.append(LedgerProblem(RecordPlace(topic.name, message.offset), error))


def append_time(timestamp_ms: int) -> datetime | None:
    """The broker's time in a message; None if it has none that is a date."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC) if timestamp_ms > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def passed_over(
    run: Run,
    take_in: Callable[[Passing], T],
    *,
    skipped: frozenset[RecordPlace] = frozenset(),
    starts: Mapping[str, int] | None = None,
) -> tuple[T, Passing]:
    """What `take_in` makes of both topics without the records that entries name; and the last pass, with its problems.

    An entry names records that lie before it and were taken in. So `take_in` is called again, without them.
    """
    while True:
        passing = Passing(run=run, skipped=skipped, starts=starts or {})
        taken = take_in(passing)
        if passing.named <= skipped:
            return taken, passing
        skipped |= passing.named


def refused(run: Run, problem: LedgerProblem, num_problems: int) -> InconsistentLedgerError:
    """The error that ends who cannot pass over a record that nobody said to pass over."""
    return InconsistentLedgerError(
        f"run {run.name}, {problem.place}: {problem.error}. Every record there counts, and {num_problems} can't be "
        "read or contradict others: see `rollstream ledger check`, then `rollstream ledger repair`"
    )


def skipped_by(entry: LedgerEntry) -> set[RecordPlace]:
    """The records that an entry of kind skip names; none for other kinds."""
    if entry.kind is not EntryKind.SKIP:
        return set()
    return {RecordPlace(record.topic, record.offset) for record in entry.skipped}


def all_skipped(entries: Iterable[LedgerEntry]) -> set[RecordPlace]:
    """The records that any of these entries says to pass over."""
    return {named for entry in entries for named in skipped_by(entry)}


def read_versions(run: Run, entries: Iterable[LedgerEntry]) -> list[WeightsPublished]:
    """Every readable weight version but those that `entries` say to pass over; for views."""
    skipped = all_skipped(entries)
    found = run.read_with_messages(WEIGHTS)
    return [weights for message, weights in found if RecordPlace(WEIGHTS.name, message.offset) not in skipped]


def read_entries(run: Run) -> list[LedgerEntry]:
    """Every readable entry of the ledger but those that are to be passed over; for views, which show them whole."""
    found = [(RecordPlace(LEDGER.name, message.offset), entry) for message, entry in run.read_with_messages(LEDGER)]
    skipped = all_skipped(entry for _, entry in found)
    return [entry for place, entry in found if place not in skipped]
