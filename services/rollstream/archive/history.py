"""The surviving branch of an archive's own ledger: nothing is asked of a broker for it."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

import pyarrow.dataset as ds

from rollstream.archive.branch import Branch
from rollstream.archive.disk import readable
from rollstream.archive.segments import Segment
from rollstream.archive.store import Store
from rollstream.archive.tables import STEPS
from rollstream.schemas.ledger import EntryKind, LedgerEntry, SkippedRecord
from rollstream.schemas.topics import LEDGER

_COLUMNS: Final = ("kind", "incarnation", "step", "weight_version", "parent_version", "checkpoint", "started_at",
                   "finished_at")  # fmt: skip
_OFFSET: Final = "ledger_offset"


def branch_to_go_on_from(store: Store) -> Branch:
    """The branch at the end of the last whole pass, and the entries that were archived since.

    Loads all segments and computes it anew where one of these entries reaches further back. Raises `ConfigurationError`
    as `read_branch` does.
    """
    if store.head is None:
        return read_branch(store)
    state = store.head.branch
    branch = Branch(state=state)
    newer = [one for one in store.of_topic("ledger") if one.next_offsets.get(0, 0) > state.next_offset]
    for offset, entry in _entries(store, newer, ds.field(_OFFSET) >= state.next_offset):
        if branch.add(offset, entry) or branch.is_cut_short:
            store.load_all()
            return read_branch(store)
    return branch


def read_branch(store: Store) -> Branch:
    """The surviving branch, computed from every archived entry.

    Raises `ConfigurationError` if a file of `steps` is gone: what follows a gap would contradict what is before it, and
    no entry of it would survive.
    """
    segments = store.of_topic("ledger")
    repairs = _entries(store, segments, ds.field("kind") == EntryKind.SKIP.value)
    skipped = {record.offset for _, entry in repairs for record in entry.skipped if record.topic == LEDGER.name}
    branch = Branch(frozenset(skipped))
    for offset, entry in _entries(store, segments):
        branch.add(offset, entry)
    return branch


def _entries(
    store: Store, segments: list[Segment], chosen: ds.Expression | None = None
) -> Iterator[tuple[int, LedgerEntry]]:
    """The entries in their order, without metrics, groups and rollouts."""
    for segment in segments:
        rows: list[dict[str, Any]] = []
        for path in store.named(STEPS, [segment]):
            with readable(path):
                table = ds.dataset(str(path), format="parquet")
                rows += table.to_table(columns=[_OFFSET, "skipped", *_COLUMNS], filter=chosen).to_pylist()
        # A broker's clock may go back over midnight: then the files of two days alternate.
        for row in sorted(rows, key=itemgetter(_OFFSET)):
            skipped = tuple(SkippedRecord(**record) for record in row["skipped"])
            yield row[_OFFSET], LedgerEntry(skipped=skipped, **{name: row[name] for name in _COLUMNS})
