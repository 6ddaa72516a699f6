"""What a trainer knows of its run: the same from a snapshot and what came since as from the whole of both topics."""

from pathlib import Path

import pytest

from rollstream.history.directory_store import DirectoryWeightStore
from rollstream.history.known import HistorySnapshot, KnownHistory
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry
from rollstream.trainer.commits.checkpoint import Position, newest_history, write_checkpoint
from tests.harness.builders import an_entry, published

MODEL = "policy"
TOPIC_ID = "4Tzq0h1yQ7y"
MARK = "ab"


def a_version(kind: EntryKind, version: int, parent: int | None, step: int, **fields: object) -> LedgerEntry:
    closed = (ClosedGroup(group_id=f"g{version}", outcome=GroupOutcome.TRAINED),)
    values = {"weight_version": version, "parent_version": parent, "step": step, "closed": closed, **fields}
    return an_entry(kind, **values)


TIMES = {"rollout_seconds_p99": 3.0, "step_seconds": 1.5}
VERSIONS = (
    a_version(EntryKind.RESTART, 0, None, 0),
    a_version(EntryKind.STEP, 1, 0, 1, metrics={**TIMES, "loss": float("nan")}),
    a_version(EntryKind.STEP, 2, 1, 2, checkpoint="file:///c/2-ab", metrics={"loss": 0.5}),
    a_version(EntryKind.STEP, 3, 2, 3, metrics=TIMES),
    a_version(EntryKind.RESTART, 4, 2, 2),
    a_version(EntryKind.STEP, 5, 4, 3, metrics=TIMES),
)


def take_in(known: KnownHistory, entries: tuple[LedgerEntry, ...], *, first: int = 0) -> None:
    """Each entry in a transaction with the version that it makes; its marker takes the offset after both."""
    for offset, entry in enumerate(entries, start=first):
        made = published(entry.weight_version, uri=f"file:///w/{entry.weight_version}-ab")
        known.add_committed([(entry, made)], model=MODEL, ledger_offsets=[2 * offset], weights_offsets=[2 * offset])


def a_history(*entries: LedgerEntry) -> KnownHistory:
    known = KnownHistory(TOPIC_ID)
    take_in(known, entries)
    return known


@pytest.mark.parametrize("split", range(len(VERSIONS) + 1))
def test_a_snapshot_and_what_came_since_are_the_whole_history(split: int) -> None:
    whole, before = a_history(*VERSIONS), a_history(*VERSIONS[:split])
    stored = HistorySnapshot.model_validate_json(before.snapshot().model_dump_json())
    assert max(0, 2 * split - 1) == stored.ledger_offset == stored.weights_offset
    resumed = KnownHistory(TOPIC_ID, stored)
    resumed.is_read_up_to({"ledger": 2 * split, "weights": 2 * split})
    take_in(resumed, VERSIONS[split:], first=split)
    assert resumed.snapshot() == (whole if split < len(VERSIONS) else resumed).snapshot()
    assert resumed.fold.snapshot() == whole.fold.snapshot()
    assert resumed.uris == whole.uris
    assert list(resumed.step_times) == [TIMES, {}, TIMES, TIMES]
    assert resumed.milestones == whole.milestones
    assert (whole.milestones.restarts, whole.milestones.rollbacks) == (2, 0)


def test_a_version_of_another_model_counts_for_the_next_number_alone() -> None:
    known = a_history(*VERSIONS)
    known.add_weights(published(40, model="other"), model=MODEL)
    assert known.newest_version == 40
    assert 40 not in known.uris


@pytest.mark.parametrize(("ledger_offsets", "weights_offsets"), [([13], [12]), ([12], [14]), ([12, 14], [12, 13])])
def test_after_a_record_of_somebody_else_a_snapshot_stays_as_before_it(
    ledger_offsets: list[int], weights_offsets: list[int]
) -> None:
    known = a_history(*VERSIONS)
    before = known.snapshot()
    made = [(a_version(EntryKind.STEP, version, version - 1, version - 2), published(version)) for version in (6, 7)]
    known.add_committed(
        made[: len(ledger_offsets)], model=MODEL, ledger_offsets=ledger_offsets, weights_offsets=weights_offsets
    )
    assert known.snapshot() == before
    assert known.fold.current_version == 5 + len(ledger_offsets)


def test_only_the_newest_surviving_versions_are_looked_for() -> None:
    known = a_history(*VERSIONS)
    known.keep_newest(3)
    assert known.uris == {5: "file:///w/5-ab", 4: "file:///w/4-ab", 2: "file:///w/2-ab"}


def test_the_newest_snapshot_of_this_ledger_that_can_be_read_is_taken(tmp_path: Path) -> None:
    store = DirectoryWeightStore(tmp_path)
    position = Position(
        run="run", weight_version=0, step=0, cluster_id="c", topic_ids={}, next_offsets=(), open_groups=()
    )

    def save(directory: Path) -> None:
        (directory / "model").write_bytes(b"all")

    assert newest_history(store, MARK, TOPIC_ID) is None
    for version, topic_id in ((2, TOPIC_ID), (10, TOPIC_ID), (11, "another")):
        history = a_history(*VERSIONS[: min(version, 5)]).snapshot().model_copy(update={"ledger_topic_id": topic_id})
        write_checkpoint(store, f"{version}-{MARK}01", position, history, save)
    newest = newest_history(store, MARK, TOPIC_ID)
    assert newest is not None
    assert newest.newest_version == 4
    (tmp_path / f"10-{MARK}01" / "history.json").write_text("{")
    older = newest_history(store, MARK, TOPIC_ID)
    assert older is not None
    assert older.newest_version == 1
    assert newest_history(store, "cd", TOPIC_ID) is None
