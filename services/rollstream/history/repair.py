"""Finds the records of `weights` and `ledger` that stop a run, and writes which ones readers pass over."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rollstream.bus.presence import require_no_trainer
from rollstream.bus.run import Run
from rollstream.bus.transaction import TransactionalPublisher
from rollstream.history.passing import LedgerProblem, Passing, RecordPlace
from rollstream.history.read import History, examine
from rollstream.process.settings.base import StageSettings
from rollstream.schemas.errors import ConfigurationError, InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry, SkippedRecord
from rollstream.schemas.record import utc_now
from rollstream.schemas.topics import LEDGER, WEIGHTS
from rollstream.schemas.weights import WeightsPublished

# Bounds the size of one record of the ledger.
_MOST_PLACES_PER_ENTRY: Final = 10_000
_MAX_REASON_CHARACTERS: Final = 200


def check(run: Run) -> list[LedgerProblem]:
    """Every record that can't be read, or that contradicts earlier ones. Raises `BrokerError`.

    A version on `weights` that no entry of the ledger made, or that is there twice, contradicts too: trainers publish
    both or none, and a number once. A transaction that is open is waited for, also that of a trainer that was killed:
    readers see nothing of what lies behind it.
    """
    _await_transactions(run)
    # Before the ledger is read: a trainer that lives publishes further versions.
    readable = Passing(run=run, skipped=frozenset()).weights()
    published = {RecordPlace(WEIGHTS.name, message.offset): weights for message, weights in readable}
    history = examine(run)
    return [*history.problems, *foreign_versions(published, history)]


def _await_transactions(run: Run) -> None:
    """Wait until all that lies on both topics at this moment is committed or aborted; raises `BrokerError`."""
    for topic in (WEIGHTS, LEDGER):
        ends = run.ends(topic)
        with run.reader(topic, start=ends) as reader:
            for _ in reader.to_end(ends):
                pass


def foreign_versions(published: Mapping[RecordPlace, WeightsPublished], history: History) -> Iterator[LedgerProblem]:
    """The versions on `weights` that no trainer published. Of several with one number, one is the trainer's. Pure."""
    by_version: dict[int, dict[RecordPlace, WeightsPublished]] = {}
    for place, weights in published.items():
        if place not in history.skipped:
            by_version.setdefault(weights.weight_version, {})[place] = weights
    for version, found in by_version.items():
        entry = history.entries.get(version)
        # A stranger may have been the first to use the number.
        own = next((place for place, weights in found.items() if entry and _is_of(weights, entry)), next(iter(found)))
        for place in found:
            if entry is None:
                yield LedgerProblem(place, InconsistentLedgerError(f"no entry of the ledger made version {version}"))
            elif place != own:
                yield LedgerProblem(place, InconsistentLedgerError(f"version {version} is published at {own}"))


def _is_of(weights: WeightsPublished, entry: LedgerEntry) -> bool:
    is_alike = (weights.parent_version, weights.step) == (entry.parent_version, entry.step)
    return is_alike and entry.started_at <= weights.created_at <= entry.finished_at


def repair(settings: StageSettings, places: Sequence[RecordPlace] | None, *, force: bool) -> Sequence[RecordPlace]:
    """Write that readers pass over the records at `places`, or over all that `check` lists. Returns their places.

    A trainer that still runs is fenced, unless nothing is to be written. Raises `ConfigurationError` if a trainer lives
    (unless `force`), if no record lies at one of the places, if one is a repair itself, or if problems would be left.
    Nothing is changed then.
    """
    require_no_trainer(settings.kafka, settings.run, force=force)
    run = Run(settings)
    # Before the trainer is fenced, so that a repair that is refused stops nobody.
    reasons = {place: str(error)[:_MAX_REASON_CHARACTERS] for place, error in check(run)}
    if not (places := list(reasons) if places is None else places):
        return ()
    if chosen := [place for place in places if place not in reasons]:
        _refuse_repairs(run, chosen)
    _checked(run, places)
    publisher = TransactionalPublisher(run.kafka, run.group("trainer"))
    publisher.init()
    # From here on no trainer can append. One may have committed a step since the check, so check again.
    history = _checked(run, places)
    entries = [
        _entry(history, [_skipped(place, reasons) for place in places[first : first + _MOST_PLACES_PER_ENTRY]])
        for first in range(0, len(places), _MOST_PLACES_PER_ENTRY)
    ]
    publisher.commit([run.out_record(LEDGER, entry) for entry in entries])
    return places


def _refuse_repairs(run: Run, places: Sequence[RecordPlace]) -> None:
    for message, entry in run.read_with_messages(LEDGER):
        place = RecordPlace(LEDGER.name, message.offset)
        if entry.kind is EntryKind.SKIP and place in places:
            raise ConfigurationError(f"{place} is a repair itself: what readers pass over stays so, name other records")


def _checked(run: Run, places: Sequence[RecordPlace]) -> History:
    """The history without these records; raises `ConfigurationError` if it still has problems."""
    ends = {topic.name: max(run.ends(topic).values()) for topic in (WEIGHTS, LEDGER)}
    for place in places:
        if not 0 <= place.offset < ends.get(place.topic, 0):
            raise ConfigurationError(
                f"no record of {LEDGER.name} or {WEIGHTS.name} lies at {place}: name records as `rollstream ledger "
                "check` lists them"
            )
    history = examine(run, skipped=places)
    if history.problems:
        first = history.problems[0]
        raise ConfigurationError(
            f"nothing was written: without these records {len(history.problems)} others would still stop every "
            f"trainer, the first is {first.place}: {first.error}; name them too, or others instead"
        )
    return history


def _entry(history: History, skipped: Sequence[SkippedRecord]) -> LedgerEntry:
    now = utc_now()
    return LedgerEntry(
        kind=EntryKind.SKIP,
        incarnation=f"repair-{uuid.uuid4().hex[:12]}",
        step=history.fold.step,
        weight_version=history.fold.current_version or 0,
        skipped=tuple(skipped),
        started_at=now,
        finished_at=now,
    )


def _skipped(place: RecordPlace, reasons: dict[RecordPlace, str]) -> SkippedRecord:
    reason = reasons.get(place, "chosen by an operator")
    # Both topics have one partition.
    return SkippedRecord(topic=place.topic, partition=0, offset=place.offset, reason=reason)
