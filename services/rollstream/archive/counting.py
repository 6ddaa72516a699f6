"""Which entries of the ledger count: those that neither contradict others nor are passed over by a repair.

`history/ledger.py` says what contradicts. A row is made of each entry that does not count, and after a repair of each
that counts again. All others count. Which of those survive a restart or a rollback follows from the entries themselves,
and is left to who reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from rollstream.archive.archive import Archive
from rollstream.archive.records import Row
from rollstream.archive.tables import PASSED_OVER, STEPS
from rollstream.history.ledger import FoldSnapshot, LedgerFold
from rollstream.schemas.errors import ConfigurationError, InconsistentLedgerError
from rollstream.schemas.ledger import EntryKind, LedgerEntry, SkippedRecord
from rollstream.schemas.topics import LEDGER

_OF_ENTRY: Final = ("kind", "incarnation", "step", "weight_version", "parent_version", "checkpoint", "started_at",
                    "finished_at")  # fmt: skip
Entry = tuple[int, LedgerEntry]
"""Its offset, and the entry; of its closed groups nothing is asked here."""


class _State(BaseModel):
    """What the next process goes on from. `skipped`: offsets that repairs say to pass over."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    skipped: frozenset[int]
    fold: FoldSnapshot


class Counting:
    """Takes the entries in their order, and gives the rows of `passed_over`."""

    def __init__(self, archive: Archive) -> None:
        """Go on after the newest archived entry."""
        self._archive = archive
        state = _newest_state(archive)
        self._skipped = state.skipped if state else frozenset[int]()
        self._fold = LedgerFold(state.fold if state else None)

    def state(self) -> str:
        """As JSON, for the file with the entries that were taken last."""
        return _State(skipped=self._skipped, fold=self._fold.snapshot()).model_dump_json()

    def take(self, entries: list[Entry]) -> Iterator[Row]:
        """Take the next entries; they are archived afterwards."""
        told = set[int]()
        for index, (offset, entry) in enumerate(entries):
            named = _named(entry) - self._skipped
            if named:
                self._skipped |= named
                yield from self._recounted(offset, entries[: index + 1], told)
            elif not self._counts(offset, entry):
                told.add(offset)
                yield _row(offset, offset, counts=False)

    def _counts(self, offset: int, entry: LedgerEntry) -> bool:
        if offset in self._skipped:
            return False
        try:
            self._fold.add(entry.model_copy(update=_unneeded(entry)))
        except InconsistentLedgerError:
            return False
        return True

    def _recounted(self, known_at: int, newest: list[Entry], told: set[int]) -> Iterator[Row]:
        """Begin anew, without what a repair names. Rows of all that do not count, or did not before."""
        self._fold = LedgerFold()
        entries = [*_archived_entries(self._archive), *newest]
        out = {offset for offset, entry in entries if not self._counts(offset, entry)}
        told |= out | set(self._archive.tables(PASSED_OVER)["ledger_offset"].to_pylist())
        yield from (_row(known_at, offset, counts=offset not in out) for offset in sorted(told))


def _newest_state(archive: Archive) -> _State | None:
    files = archive.row_files(STEPS)
    if not files:
        return None
    # Two processes may have written to a bucket at once: then the last one by name is not always the newest.
    newest = max(files, key=lambda file: file.end)
    try:
        return _State.model_validate_json(archive.state(newest))
    except ValidationError as error:
        raise ConfigurationError(
            f"{archive.place}/{newest.name} does not say what to go on from: put back what was written"
        ) from error


def _row(known_at: int, offset: int, *, counts: bool) -> Row:
    return {"known_at": known_at, "ledger_offset": offset, "counts": counts}


def _named(entry: LedgerEntry) -> frozenset[int]:
    if entry.kind is not EntryKind.SKIP:
        return frozenset()
    return frozenset(record.offset for record in entry.skipped if record.topic == LEDGER.name)


def _unneeded(entry: LedgerEntry) -> Mapping[str, Any]:
    """What the fold would keep of each entry, and is not asked for here; drops with a checkpoint contradict."""
    unneeded: dict[str, Any] = {"closed": (), "trained": ()}
    return unneeded if entry.kind is EntryKind.DROPS else unneeded | {"checkpoint": None}


def _archived_entries(archive: Archive) -> Iterable[Entry]:
    """Every archived entry once, in its order, without metrics, groups and rollouts."""
    rows = archive.tables(STEPS, ("ledger_offset", "skipped", *_OF_ENTRY)).to_pylist()
    for offset, row in sorted({int(row["ledger_offset"]): row for row in rows}.items()):
        skipped = tuple(SkippedRecord(**record) for record in row["skipped"])
        yield offset, LedgerEntry(skipped=skipped, **{name: row[name] for name in _OF_ENTRY})
