"""The surviving branch of an archive's own ledger: nothing is asked of a broker for it."""

from collections.abc import Iterator
from typing import Final

import pyarrow.dataset as ds

from rollstream.collect.archive.branch import Branch
from rollstream.collect.archive.store import Store, readable
from rollstream.collect.archive.tables import STEPS
from rollstream.schemas.ledger import EntryKind, LedgerEntry, SkippedRecord
from rollstream.schemas.topics import LEDGER

_COLUMNS: Final = ("kind", "incarnation", "step", "weight_version", "parent_version", "checkpoint", "started_at",
                   "finished_at")  # fmt: skip


def read_branch(store: Store) -> Branch:
    """The surviving branch, computed from every archived entry.

    Raises `ConfigurationError` if a file of `steps` is gone: what follows a gap would contradict what is before it, and
    no entry of it would survive.
    """
    repairs = _entries(store, ds.field("kind") == EntryKind.SKIP.value)
    skipped = {record.offset for _, entry in repairs for record in entry.skipped if record.topic == LEDGER.name}
    branch = Branch(frozenset(skipped))
    for offset, entry in _entries(store):
        branch.add(offset, entry)
    return branch


def _entries(store: Store, chosen: ds.Expression | None = None) -> Iterator[tuple[int, LedgerEntry]]:
    """The entries in their order, without metrics, groups and rollouts."""
    for path in store.named(STEPS, store.of_topic("ledger")):
        with readable(path):
            table = ds.dataset(str(path), format="parquet")
            for batch in table.to_batches(columns=["ledger_offset", "skipped", *_COLUMNS], filter=chosen):
                for row in batch.to_pylist():
                    skipped = tuple(SkippedRecord(**record) for record in row["skipped"])
                    yield row["ledger_offset"], LedgerEntry(skipped=skipped, **{name: row[name] for name in _COLUMNS})
