"""Writes a run's topics to an archive, and writes again what has changed: one pass after the other.

A pass reads `ledger`, `prompts` and `scored` up to their ends, in this order: so every record that an archived entry
names is archived too. Then it writes those segments again in which a group has closed since, and those that depend on
entries that a restart, a rollback or a repair has cut.
"""

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.archive.disk import readable
from rollstream.archive.fates import (
    Fate,
    by_day,
    by_directory,
    fates_in,
    fates_of,
    first_day,
    open_groups,
    with_fates,
)
from rollstream.archive.history import branch_to_go_on_from, read_branch
from rollstream.archive.reading import MOST_RECORDS, Piece, identity_of, pieces, to_fill
from rollstream.archive.records import Row, entry_row, group_rows, prompt_row, sample_row, unreadable_row
from rollstream.archive.segments import Segment, TopicName
from rollstream.archive.store import Store
from rollstream.archive.tables import (
    GROUPS,
    PROMPTS,
    ROLLOUTS,
    SAMPLE,
    SCHEMAS,
    STEPS,
    UNREADABLE,
    step_directory,
)
from rollstream.bus.run import Run
from rollstream.process.stop import Stop
from rollstream.schemas.topics import topic_named

_LOG = logging.getLogger(__name__)

MOST_OPEN_GROUPS: Final = 500_000
MOST_OPEN_SEGMENTS: Final = 1_000
"""Open groups whose fates are waited for, and segments that have some. Of more, the oldest stay open in `rollouts`;
`groups` has their fates."""
REMEMBERED_ENTRIES: Final = 1_000
"""Newest surviving entries of the ledger that a writer knows one by one. One that goes back further costs a look at the
whole archive."""

Tables = dict[str, pa.Table]
"""Directory below the archive -> the rows that go there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`records`: those of one segment at most."""

    records: int = MOST_RECORDS
    open_segments: int = MOST_OPEN_SEGMENTS
    remembered_entries: int = REMEMBERED_ENTRIES


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

    def __init__(
        self, run: Run, store: Store, *, accept_loss: bool = False, bounds: Bounds | None = None,
        stop: Stop | None = None,
    ) -> None:  # fmt: skip
        """`accept_loss`: go on where records were deleted unread. `stop`: end a pass after the next segment."""
        self._run = run
        self._admin = run.admin()
        self._bounds = bounds or Bounds()
        self._store = store
        self._accept_loss = accept_loss
        self._stop = stop or Stop()
        self._branch = branch_to_go_on_from(store)
        # At the end of each pass every open group was looked up in all entries.
        self._looked_up_until = 0 if store.head is None else store.head.branch.next_offset
        self._open: dict[int, frozenset[str]] = {}
        for segment in store.of_topic("scored"):
            if segment.num_open:
                names = [name for name in _names(segment, ROLLOUTS) if _may_be_open(name)]
                self._note_open(segment.number, open_groups(self._read_again(ROLLOUTS, names, ["group_id", "outcome"])))

    def make_pass(self) -> Report:
        """Read what has come, and write again what has changed."""
        self._store.require(identity_of(self._run, self._admin))
        self._archive("ledger", self._entries)
        self._archive("prompts", self._prompts)
        self._archive("scored", self._samples)
        num_rewritten = self._rewrite_changed()
        self._branch.forget(self._bounds.remembered_entries)
        self._store.keep(self._live(), self._branch.state())
        return Report(
            num_rollouts=self._store.num_rows("scored"),
            num_entries=self._store.num_rows("ledger"),
            num_prompts=self._store.num_rows("prompts"),
            num_unreadable=self._store.num_unreadable(),
            num_open_groups=len(frozenset().union(*self._open.values())),
            num_rewritten=num_rewritten,
        )

    def _archive(self, topic: TopicName, write: Callable[["_Addition"], None]) -> None:
        """Write what has come on a topic: first what fills its newest segment, then each piece as a new one."""
        old = to_fill(self._store.newest(topic), self._bounds.records)
        for piece in pieces(
            self._run, topic_named(topic), self._store.next_offsets(topic), begun=old, accept_loss=self._accept_loss,
            most_records=self._bounds.records,
        ):  # fmt: skip
            # Those of a topic that was made anew meanwhile must not come in.
            self._store.require(identity_of(self._run, self._admin))
            for message, error in piece.unreadable:
                _LOG.warning("not archived: %s", error, extra=message.place())
            segment = self._begun(topic) if old is None else old.model_copy(update={"generation": old.generation + 1})
            segment = segment.model_copy(
                update={
                    "next_offsets": piece.next_offsets,
                    "num_rows": segment.num_rows + len(piece.records),
                    "num_unreadable": segment.num_unreadable + len(piece.unreadable),
                    "num_bytes": piece.num_bytes,
                }
            )
            addition = _Addition(segment, piece, old)
            self._add_unreadable(addition)
            write(addition)
            old = None
            # The loop still names it while the next one is read.
            piece.records.clear()
            if self._stop.is_asked:
                return

    def _begun(self, topic: TopicName) -> Segment:
        return Segment(number=self._store.next_number(), topic=topic, next_offsets={})

    def _add_unreadable(self, addition: "_Addition") -> None:
        new = addition.piece.unreadable
        if new:
            rows = _table(UNREADABLE, (unreadable_row(*bad) for bad in new))
            addition.tables |= by_day(UNREADABLE, self._after_old(addition, UNREADABLE, rows))
        elif addition.old is not None:
            addition.kept += _names(addition.old, UNREADABLE)

    def _entries(self, addition: "_Addition") -> None:
        known_until, anew, newest = self._branch.next_offset, False, addition.segment.newest_entry
        for message, entry in addition.piece.records:
            anew |= bool(self._branch.add(message.offset, entry)) or self._branch.is_cut_short
            newest = message.offset
        # What a repair changes is known only when the branch is computed anew: then this segment is written again too.
        updates = {"known_until": known_until if anew else self._branch.next_offset, "newest_entry": newest}
        steps = _table(STEPS, (entry_row(*record) for record in addition.piece.records))
        groups = _table(GROUPS, (row for record in addition.piece.records for row in group_rows(*record)))
        for name, rows in ((STEPS, steps), (GROUPS, groups)):
            addition.tables |= by_day(name, self._with_survival(self._after_old(addition, name, rows)))
        self._store.commit(addition.segment.model_copy(update=updates), addition.tables, addition.kept)
        if anew:
            self._store.load_all()
            self._branch = read_branch(self._store)
            self._looked_up_until = 0

    def _prompts(self, addition: "_Addition") -> None:
        rows = self._after_old(addition, PROMPTS, _table(PROMPTS, (prompt_row(*one) for one in addition.piece.records)))
        self._store.commit(addition.segment, addition.tables | by_day(PROMPTS, rows), addition.kept)

    def _samples(self, addition: "_Addition") -> None:
        """Write new rows, and those of the segment whose fate may be another by now."""
        segment, old = addition.segment, addition.old
        new = pa.Table.from_pylist([sample_row(*record) for record in addition.piece.records], schema=SAMPLE)
        is_all = old is None or self._has_changed(old)
        names = [] if old is None else [one for one in _names(old, ROLLOUTS) if is_all or _may_be_open(one)]
        before = self._read_again(ROLLOUTS, names)
        samples = pa.concat_tables([before.select(SAMPLE.names), new])
        if is_all:
            fates = self._fates(samples)
        else:
            fates = {**fates_in(before), **self._newer_fates(open_groups(before)), **self._fates(new)}
        rollouts = with_fates(samples, fates)
        addition.tables |= by_directory(rollouts)
        for name in () if old is None else _names(old, ROLLOUTS):
            place = name.rpartition("/")[0]
            if name in names:
                continue
            if place in addition.tables:
                addition.tables[place] = pa.concat_tables([self._read_again(ROLLOUTS, [name]), addition.tables[place]])
            else:
                addition.kept.append(name)
        still_open = open_groups(rollouts)
        newest = max((fate.closed_by or 0 for fate in fates.values()), default=-1)
        updates = {
            "known_until": self._branch.next_offset,
            "newest_entry": newest if is_all else max(newest, segment.newest_entry),
            "num_open": sum(group in still_open for group in rollouts["group_id"].to_pylist()),
        }
        self._store.commit(segment.model_copy(update=updates), addition.tables, addition.kept)
        self._note_open(segment.number, still_open)

    def _fates(self, samples: pa.Table) -> dict[str, Fate]:
        """The fates of their groups, out of all entries that may close them."""
        day = first_day(samples)
        files = [] if day is None else self._store.since_day(GROUPS, day)
        return fates_of(frozenset(samples["group_id"].to_pylist()), files, self._branch.survives)

    def _newer_fates(self, groups: Set[str]) -> dict[str, Fate]:
        """The fates of groups that were open at the end of the last pass."""
        since = self._looked_up_until
        newer = [one for one in self._store.of_topic("ledger") if one.next_offsets.get(0, 0) > since]
        return fates_of(groups, self._store.files(GROUPS, newer), self._branch.survives, since=since)

    def _has_changed(self, segment: Segment) -> bool:
        return self._branch.has_changed(known_until=segment.known_until, newest=segment.newest_entry)

    def _note_open(self, number: int, groups: frozenset[str]) -> None:
        self._open.pop(number, None)
        if groups:
            self._open[number] = groups
        while len(self._open) > self._bounds.open_segments or sum(map(len, self._open.values())) > MOST_OPEN_GROUPS:
            oldest = min(self._open)
            _LOG.warning("%d groups stay open in the archive: others are open that are newer", len(self._open[oldest]))
            del self._open[oldest]

    def _live(self) -> set[int]:
        """The segments that the next pass may write again, or reads on from."""
        newest = {segment.number for topic in _TOPICS if (segment := self._store.newest(topic)) is not None}
        known_from = self._branch.known_from
        near = {one.number for one in self._store.segments.values() if one.newest_entry >= known_from}
        return newest | near | self._open.keys()

    def _rewrite_changed(self) -> int:
        """Write the next generation of each segment whose rows have changed; their number."""
        closed = self._newer_fates(frozenset().union(*self._open.values())).keys()
        changed = [
            segment
            for segment in self._store.segments.values()
            if not closed.isdisjoint(self._open.get(segment.number, ())) or self._has_changed(segment)
        ]
        # Those of the ledger first: the others look into them.
        for segment in sorted(changed, key=lambda one: (one.topic != "ledger", one.number)):
            self._rewrite(segment)
        self._looked_up_until = self._branch.next_offset
        return len(changed)

    def _rewrite(self, segment: Segment) -> None:
        following = segment.model_copy(
            update={"generation": segment.generation + 1, "known_until": self._branch.next_offset}
        )
        addition = _Addition(following, Piece({}), segment, kept=_names(segment, UNREADABLE))
        if segment.topic == "scored":
            self._samples(addition)
            return
        for name in (STEPS, GROUPS):
            addition.tables |= by_day(name, self._with_survival(self._read_again(name, _names(segment, name))))
        self._store.commit(following, addition.tables, addition.kept)

    def _after_old(self, addition: "_Addition", table: str, rows: pa.Table) -> pa.Table:
        """These rows, after those that the segment had."""
        if addition.old is None:
            return rows
        return pa.concat_tables([self._read_again(table, _names(addition.old, table)), rows])

    def _read_again(self, table: str, names: Iterable[str], columns: Sequence[str] | None = None) -> pa.Table:
        chosen = SCHEMAS[table].names if columns is None else list(columns)
        tables = [SCHEMAS[table].empty_table().select(chosen)]
        for name in names:
            path = self._store.directory / name
            # A person may delete rollouts. Without an entry of the ledger those after it would not survive.
            if table in (STEPS, GROUPS) or path.is_file():
                with readable(path):
                    tables.append(pq.ParquetFile(path).read(chosen))
        return pa.concat_tables(tables)

    def _with_survival(self, table: pa.Table) -> pa.Table:
        rows = zip(table["ledger_offset"].to_pylist(), table["survives"].to_pylist(), strict=True)
        survives = pa.array([self._branch.survives(offset, bool(recorded)) for offset, recorded in rows], pa.bool_())
        return table.set_column(table.schema.get_field_index("survives"), "survives", survives)


@dataclass(slots=True)
class _Addition:
    """Records that become a segment, or that `old` gets in its next generation.

    `tables`: what is written. `kept`: files of `old` that stay as they are.
    """

    segment: Segment
    piece: Piece
    old: Segment | None
    tables: Tables = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


_TOPICS: Final[tuple[TopicName, ...]] = ("ledger", "prompts", "scored")


def _table(name: str, rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMAS[name])


def _names(segment: Segment, table: str) -> list[str]:
    return [name for name in segment.files if name.startswith(f"{table}/")]


def _may_be_open(name: str) -> bool:
    """Whether a file of `rollouts` may have rows of groups that are open."""
    return f"/{step_directory(None)}/" in name
