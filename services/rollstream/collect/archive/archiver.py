"""Writes a run's topics to an archive, and writes again what has changed: one pass after the other.

A pass reads `ledger`, `prompts` and `scored` up to their ends, in this order: so every record that an archived entry
names is archived too. Then it writes those segments again in which a group has closed since, and those that depend on
entries that a restart, a rollback or a repair has cut.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.bus.run import Run
from rollstream.collect.archive.fates import by_day, by_directory, closings_since, fates_of, open_groups, with_fates
from rollstream.collect.archive.history import read_branch
from rollstream.collect.archive.reading import MOST_RECORDS, Piece, pieces
from rollstream.collect.archive.records import Row, entry_row, group_rows, prompt_row, sample_row, unreadable_row
from rollstream.collect.archive.store import Segment, Store, TopicName, readable
from rollstream.collect.archive.tables import GROUPS, PROMPTS, ROLLOUTS, SAMPLE, SCHEMAS, STEPS, UNREADABLE
from rollstream.schemas.topics import topic_named

_LOG = logging.getLogger(__name__)

MOST_OPEN_GROUPS: Final = 500_000
"""Open groups whose fates are waited for. Of more, the oldest stay open in `rollouts`; `groups` has their fates."""

Tables = dict[str, pa.Table]
"""Directory below the archive -> the rows that go there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an archive holds after a pass. `num_rewritten`: segments that this pass wrote again."""

    num_rollouts: int
    num_entries: int
    num_prompts: int
    num_unreadable: int
    num_open_groups: int
    num_rewritten: int


class Archiver:
    """Makes passes over a run's topics."""

    def __init__(self, run: Run, store: Store, *, accept_loss: bool = False, most_records: int = MOST_RECORDS) -> None:
        """`accept_loss`: go on where records were deleted unread. `most_records`: those of one segment."""
        self._run = run
        self._most_records = most_records
        self._store = store
        self._accept_loss = accept_loss
        self._branch = read_branch(store)
        self._looked_up_from = 0
        self._open: dict[int, frozenset[str]] = {}
        for segment in store.of_topic("scored"):
            if segment.num_open:
                fates = self._read_again(segment, ROLLOUTS, ["group_id", "outcome"])
                self._note_open(segment.number, open_groups(fates))

    def make_pass(self) -> Report:
        """Read what has come, and write again what has changed."""
        self._archive("ledger", self._entries)
        self._archive("prompts", self._prompts)
        self._archive("scored", self._samples)
        num_rewritten = self._rewrite_changed()
        sums = {topic: sum(one.num_rows for one in self._store.of_topic(topic)) for topic in _TOPICS}
        return Report(
            num_rollouts=sums["scored"],
            num_entries=sums["ledger"],
            num_prompts=sums["prompts"],
            num_unreadable=sum(segment.num_unreadable for segment in self._store.segments.values()),
            num_open_groups=len(frozenset().union(*self._open.values())),
            num_rewritten=num_rewritten,
        )

    def _archive(self, topic: TopicName, write: Callable[[Segment, Piece, Tables], None]) -> None:
        """Write what has come on a topic, each piece as a new segment; `write` adds its tables and commits it."""
        start = self._store.next_offsets(topic)
        for piece in pieces(
            self._run, topic_named(topic), start, accept_loss=self._accept_loss, most_records=self._most_records
        ):
            for message, error in piece.unreadable:
                _LOG.warning("not archived: %s", error, extra=message.place())
            segment = Segment(
                number=self._store.next_number(),
                topic=topic,
                next_offsets=piece.next_offsets,
                num_rows=len(piece.records),
                num_unreadable=len(piece.unreadable),
            )
            write(segment, piece, _by_day(UNREADABLE, (unreadable_row(*bad) for bad in piece.unreadable)))
            # The loop still names it while the next one is read.
            piece.records.clear()

    def _entries(self, segment: Segment, piece: Piece, tables: Tables) -> None:
        known_before = self._branch.next_offset
        newly_skipped = False
        for message, entry in piece.records:
            newly_skipped |= bool(self._branch.add(message.offset, entry))
        # What a repair changes is known only when the branch is computed anew: then this segment is written again too.
        known_until = known_before if newly_skipped else self._branch.next_offset
        newest = piece.records[-1][0].offset if piece.records else -1
        steps = [entry_row(*record) for record in piece.records]
        groups = [row for record in piece.records for row in group_rows(*record)]
        tables |= _by_day(STEPS, map(self._survival, steps)) | _by_day(GROUPS, map(self._survival, groups))
        self._store.commit(segment.model_copy(update={"known_until": known_until, "newest_entry": newest}), tables)
        if newly_skipped:
            self._branch = read_branch(self._store)
            self._looked_up_from = 0

    def _prompts(self, segment: Segment, piece: Piece, tables: Tables) -> None:
        self._store.commit(segment, tables | _by_day(PROMPTS, (prompt_row(*record) for record in piece.records)))

    def _samples(self, segment: Segment, piece: Piece, tables: Tables) -> None:
        rows = [sample_row(*record) for record in piece.records]
        self._commit_samples(segment, pa.Table.from_pylist(rows, schema=SAMPLE), tables)

    def _commit_samples(self, segment: Segment, samples: pa.Table, tables: Tables) -> None:
        groups = set(samples["group_id"].to_pylist())
        files = self._store.files(GROUPS, self._store.of_topic("ledger"))
        fates = fates_of(groups, closings_since(samples, files), self._branch.survives)
        rollouts = with_fates(samples, fates)
        still_open = groups - fates.keys()
        updates = {
            "known_until": self._branch.next_offset,
            "newest_entry": max((fate.closed_by or 0 for fate in fates.values()), default=-1),
            "num_open": sum(group in still_open for group in samples["group_id"].to_pylist()),
        }
        self._store.commit(segment.model_copy(update=updates), tables | by_directory(rollouts))
        self._note_open(segment.number, frozenset(still_open))

    def _note_open(self, number: int, groups: frozenset[str]) -> None:
        self._open.pop(number, None)
        if groups:
            self._open[number] = groups
        while sum(map(len, self._open.values())) > MOST_OPEN_GROUPS:
            oldest = min(self._open)
            _LOG.warning("%d groups stay open in the archive: more than %d are open", len(self._open[oldest]),
                         MOST_OPEN_GROUPS)  # fmt: skip
            del self._open[oldest]

    def _rewrite_changed(self) -> int:
        """Write the next generation of each segment whose rows have changed; their number."""
        entries = self._store.of_topic("ledger")
        new_files = self._store.files(GROUPS, [one for one in entries if one.number >= self._looked_up_from])
        closed = fates_of(frozenset().union(*self._open.values()), new_files, self._branch.survives).keys()
        self._looked_up_from = self._store.next_number()
        changed = [
            segment
            for segment in self._store.segments.values()
            if not closed.isdisjoint(self._open.get(segment.number, ()))
            or self._branch.has_changed(known_until=segment.known_until, newest=segment.newest_entry)
        ]
        # Those of the ledger first: the others look into them.
        for segment in sorted(changed, key=lambda one: (one.topic != "ledger", one.number)):
            self._rewrite(segment)
        return len(changed)

    def _rewrite(self, segment: Segment) -> None:
        following = segment.model_copy(
            update={"generation": segment.generation + 1, "known_until": self._branch.next_offset}
        )
        tables = by_day(UNREADABLE, self._read_again(segment, UNREADABLE))
        if segment.topic == "scored":
            self._commit_samples(following, self._read_again(segment, ROLLOUTS, SAMPLE.names), tables)
            return
        for name in (STEPS, GROUPS):
            tables |= by_day(name, self._with_survival(self._read_again(segment, name)))
        self._store.commit(following, tables)

    def _read_again(self, segment: Segment, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        names = SCHEMAS[table].names if columns is None else list(columns)
        tables = [SCHEMAS[table].empty_table().select(names)]
        for path in self._store.files(table, [segment]):
            with readable(path):
                tables.append(pq.ParquetFile(path).read(names))
        return pa.concat_tables(tables)

    def _survival(self, row: Row) -> Row:
        return row | {"survives": self._branch.survives(row["ledger_offset"])}

    def _with_survival(self, table: pa.Table) -> pa.Table:
        survives = pa.array(
            [self._branch.survives(offset) for offset in table["ledger_offset"].to_pylist()], pa.bool_()
        )
        return table.set_column(table.schema.get_field_index("survives"), "survives", survives)


_TOPICS: Final[tuple[TopicName, ...]] = ("ledger", "prompts", "scored")


def _by_day(table: str, rows: Iterable[Row]) -> Tables:
    return by_day(table, pa.Table.from_pylist(list(rows), schema=SCHEMAS[table]))
