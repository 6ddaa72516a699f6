"""The files of an archive: which count, what a killed writer leaves, and what is refused."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from rollstream.archive.branch import Branch
from rollstream.archive.disk import readable
from rollstream.archive.fates import Fate, by_day, by_directory, fates_in, fates_of, open_groups, with_fates
from rollstream.archive.history import read_branch
from rollstream.archive.records import entry_row, sample_row
from rollstream.archive.segments import Identity, Segment
from rollstream.archive.store import Store
from rollstream.archive.tables import SAMPLE, SCHEMAS
from rollstream.bus.message import KafkaMessage
from rollstream.schemas.errors import ConfigurationError
from rollstream.schemas.ledger import EntryKind
from rollstream.schemas.scored import RolloutScored
from tests.harness.builders import NOON, a_group, a_prompt, an_entry

IDENTITY = Identity(run="demo", cluster_id="one", topic_ids={"demo.scored": "a"})


def samples(rollouts: list[RolloutScored], first: int = 0) -> pa.Table:
    rows = [
        sample_row(
            KafkaMessage(
                topic="demo.scored", partition=0, offset=first + index, key=None, value=b"", timestamp_ms=1000
            ),
            rollout,
        )
        for index, rollout in enumerate(rollouts)
    ]
    return pa.Table.from_pylist(rows, schema=SAMPLE)


def a_segment(number: int = 0, generation: int = 1) -> Segment:
    return Segment(number=number, generation=generation, topic="scored", next_offsets={0: 2 * number + 2}, num_rows=2)


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.parquet*"))


def test_a_new_generation_replaces_the_files_of_the_one_before(tmp_path: Path) -> None:
    prompt = a_prompt(group_size=2)
    table = samples(a_group([0.0, 1.0], prompt=prompt))
    trained = Fate("trained", "", 4, 4, 9, frozenset({(0, 1)}))
    with Store.writing(tmp_path / "archive", IDENTITY) as store:
        store.commit(a_segment(), by_directory(with_fates(table, {})))
        assert names(store.directory) == ["rollouts/day=1970-01-01/step=none/part-00000000-g1.parquet"]
        store.commit(a_segment(generation=2), by_directory(with_fates(table, {prompt.group_id: trained})))
    assert names(store.directory) == ["rollouts/day=1970-01-01/step=000004/part-00000000-g2.parquet"]
    rows = pd.read_parquet(store.directory / "rollouts")
    assert rows.trained.tolist() == [False, True]
    assert rows.trained_step.tolist() == [4, 4]
    again = Store(store.directory)
    assert again.next_offsets("scored") == {0: 2}
    assert again.next_number() == 1
    assert again.next_offsets("ledger") == {}


def test_files_that_no_segment_names_are_removed_and_those_of_people_stay(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    table = by_directory(with_fates(samples(a_group([0.0, 1.0])), {}))
    with Store.writing(directory, IDENTITY) as store:
        store.commit(a_segment(), table)
    place = directory / "rollouts" / "day=1970-01-01" / "step=none"
    for left in ("part-00000000-g2.parquet", "part-00000007-g1.parquet", ".part-00000008-g1.parquet.tmp"):
        (place / left).write_bytes(b"half a file")
    (place / "notes.parquet").write_bytes(b"a person's")
    # As after a writer that left no note.
    (directory / "writing.json").unlink()
    with Store.writing(directory, IDENTITY):
        pass
    assert [path.name for path in sorted(place.iterdir())] == ["notes.parquet", "part-00000000-g1.parquet"]


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        Store.writing(tmp_path / "archive", IDENTITY),
        pytest.raises(ConfigurationError, match="another `rollstream archive` writes"),
        Store.writing(tmp_path / "archive", IDENTITY),
    ):
        pass


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"run": "else"}, "is the archive of run demo on cluster one, not of else on one"),
        ({"cluster_id": "two"}, "is the archive of run demo on cluster one, not of demo on two"),
        ({"topic_ids": {"demo.scored": "b"}}, "topics of demo that were deleted since, and made again"),
    ],
)
def test_the_archive_of_another_run_or_cluster_is_refused(tmp_path: Path, other: dict[str, object], why: str) -> None:
    with Store.writing(tmp_path / "archive", IDENTITY):
        pass
    with (
        pytest.raises(ConfigurationError, match=why),
        Store.writing(tmp_path / "archive", IDENTITY.model_copy(update=other)),
    ):
        pass


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConfigurationError, match=r"other files \(thesis.tex\)"), Store.writing(tmp_path, IDENTITY):
        pass


def test_a_writer_that_died_before_its_first_file_is_followed_by_another(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    (tmp_path / ".archive.json.tmp").write_text('{"run')
    with Store.writing(tmp_path, IDENTITY) as store:
        assert store.next_number() == 0


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigurationError, match="cannot write below"),
        Store.writing(tmp_path / "file" / "archive", IDENTITY),
    ):
        pass


def test_a_damaged_archive_is_refused_with_the_file_at_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is no archive: it has no archive\.json"):
        Store(tmp_path)
    with Store.writing(tmp_path / "archive", IDENTITY) as store:
        store.commit(a_segment(), {})
    [segment] = (tmp_path / "archive" / "segments").glob("*.json")
    written = json.loads(segment.read_text())
    segment.write_text(json.dumps(written | {"files": ["../../home/somebody/file.parquet"]}))
    with pytest.raises(ConfigurationError, match=r"00000000\.json is damaged: files: .* is no file of an archive"):
        Store(tmp_path / "archive")
    segment.write_bytes(b"\0" * 40)
    with pytest.raises(ConfigurationError, match=r"00000000\.json is damaged"):
        Store(tmp_path / "archive")


def a_closing(group: str, offset: int, **fields: object) -> dict[str, object]:
    values: dict[str, object] = {
        "ledger_offset": offset, "appended_at": NOON, "survives": True, "group_id": group, "outcome": "dropped",
        "reason": "lost", "closed_in_step": 1, "trained_step": None, "trained": [],
    }  # fmt: skip
    return {**values, **fields}


def test_the_first_surviving_entry_that_closes_a_group_decides_its_fate(tmp_path: Path) -> None:
    place = [{"rollout_id": "b-0", "attempt_id": "x", "partition": 1, "offset": 5}]
    rows = [
        a_closing("a", 2),
        a_closing("b", 2, reason="cut"),
        a_closing("b", 9, outcome="trained", reason="", trained_step=3, closed_in_step=3, trained=place),
        a_closing("b", 12, reason="later"),
        a_closing("c", 2),
    ]
    with Store.writing(tmp_path / "archive", IDENTITY) as store:
        table = pa.Table.from_pylist(rows, schema=SCHEMAS["groups"])
        store.commit(a_segment().model_copy(update={"topic": "ledger"}), {"groups/day=2026-03-01": table})
    found = fates_of({"b", "c", "d"}, store.files("groups", store.segments.values()), lambda offset, _: offset > 2)
    assert found == {"b": Fate("trained", "", 3, 3, 9, frozenset({(1, 5)}))}
    assert fates_of({"a"}, [], lambda *_: True) == {}


def test_a_group_that_nothing_closed_is_open() -> None:
    prompts = [a_prompt(row, group_size=1) for row in range(2)]
    table = samples([rollout for prompt in prompts for rollout in a_group([1.0], prompt=prompt)])
    closed = with_fates(table, {prompts[0].group_id: Fate("dropped", "no_spread", None, 2, 4)})
    assert open_groups(closed) == {prompts[1].group_id}
    assert closed["reason"].to_pylist() == ["no_spread", ""]
    assert closed["closed_in_step"].to_pylist() == [2, None]
    assert list(by_directory(closed)) == ["rollouts/day=1970-01-01/step=none"]


def an_archive_of_steps(directory: Path) -> Store:
    """Three entries, each in a segment of its own."""
    with Store.writing(directory, IDENTITY) as store:
        for offset in range(3):
            kind = EntryKind.STEP if offset else EntryKind.RESTART
            entry = an_entry(kind, step=offset, weight_version=offset, parent_version=offset - 1 if offset else None)
            message = KafkaMessage(
                topic="demo.ledger", partition=0, offset=offset, key=None, value=b"", timestamp_ms=1000
            )
            row = entry_row(message, entry) | {"survives": True}
            table = pa.Table.from_pylist([row], schema=SCHEMAS["steps"])
            store.commit(
                Segment(number=offset, topic="ledger", next_offsets={0: offset + 1}), {"steps/day=1970-01-01": table}
            )
    return Store(directory)


def test_steps_with_a_gap_are_refused_since_nothing_after_it_would_survive(tmp_path: Path) -> None:
    store = an_archive_of_steps(tmp_path / "archive")
    assert [read_branch(store).survives(offset) for offset in range(3)] == [True, True, True]
    [deleted] = store.directory.rglob("part-00000001-g1.parquet")
    deleted.unlink()
    with pytest.raises(ConfigurationError, match=r"part-00000001-g1\.parquet is gone: put it back"):
        read_branch(store)


def test_a_damaged_file_of_steps_or_groups_is_named(tmp_path: Path) -> None:
    store = an_archive_of_steps(tmp_path / "archive")
    [damaged] = store.directory.rglob("part-00000002-g1.parquet")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    with pytest.raises(ConfigurationError, match=r"part-00000002-g1\.parquet is damaged"):
        read_branch(store)
    with pytest.raises(ConfigurationError, match=r"part-00000002-g1\.parquet is damaged"):
        fates_of({"a"}, [damaged], lambda *_: True)


def test_a_writer_that_died_is_cleared_away_by_its_note(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    table = by_directory(with_fates(samples(a_group([0.0, 1.0])), {}))
    with Store.writing(directory, IDENTITY) as store:
        store.commit(a_segment(), table)
        store.keep({0}, Branch().state())
        before = (directory / "segments" / "00000000.json").read_bytes()
        store.commit(a_segment(generation=2), table)
    place = directory / "rollouts" / "day=1970-01-01" / "step=none"
    assert names(place) == ["part-00000000-g2.parquet"]
    # As if it had died before the second generation counted: what the note does not name is not looked for.
    (directory / "segments" / "00000000.json").write_bytes(before)
    (place / "part-00000000-g1.parquet").write_bytes((place / "part-00000000-g2.parquet").read_bytes())
    (place / ".part-00000000-g2.parquet.tmp").write_bytes(b"half a file")
    (place / "part-00000009-g1.parquet").write_bytes(b"a copy that somebody made")
    with Store.writing(directory, IDENTITY) as store:
        assert store.num_rows("scored") == 2
    assert names(place) == ["part-00000000-g1.parquet", "part-00000009-g1.parquet"]


def test_a_writer_goes_on_from_the_live_segments_and_newer_ones_and_counts_all(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with Store.writing(directory, IDENTITY) as store:
        for number in range(4):
            store.commit(a_segment(number), {})
        store.keep({1, 3}, Branch().state())
        assert store.segments.keys() == {1, 3}
        store.commit(a_segment(4), {})
    with Store.writing(directory, IDENTITY) as store:
        assert store.segments.keys() == {1, 3, 4}
        assert (store.num_rows("scored"), store.next_number(), store.next_offsets("scored")) == (10, 5, {0: 10})
        store.keep({4}, Branch().state())
        assert store.num_rows("scored") == 10
        store.load_all()
        assert store.segments.keys() == {0, 1, 2, 3, 4}
        assert store.num_rows("scored") == 10
    assert Store(directory).segments.keys() == {0, 1, 2, 3, 4}, "readers see all"


def test_a_format_that_is_not_known_is_named(tmp_path: Path) -> None:
    (tmp_path / "archive.json").write_text(IDENTITY.model_copy(update={"format": 2}).model_dump_json())
    with pytest.raises(ConfigurationError, match="archive of format 2, and this rollstream knows 1"):
        Store(tmp_path)


def test_a_file_that_cannot_be_read_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").mkdir()
    with (
        pytest.raises(ConfigurationError, match=r"cannot read .*part\.parquet: Is a directory"),
        readable(tmp_path / "part.parquet"),
    ):
        (tmp_path / "part.parquet").read_bytes()


def test_the_entries_of_a_segment_are_in_order_although_the_clock_of_a_broker_went_back(tmp_path: Path) -> None:
    """Over midnight: the second of three entries is of the day before, and has a file of its own."""
    kinds = [EntryKind.RESTART, EntryKind.STEP, EntryKind.STEP]
    entries = [an_entry(kind, step=n, weight_version=n, parent_version=n - 1 if n else None)
               for n, kind in enumerate(kinds)]  # fmt: skip
    times = [86_400_000, 86_399_000, 86_401_000]
    rows = [
        entry_row(
            KafkaMessage(topic="demo.ledger", partition=0, offset=n, key=None, value=b"", timestamp_ms=times[n]), entry
        )
        | {"survives": True}
        for n, entry in enumerate(entries)
    ]
    with Store.writing(tmp_path / "archive", IDENTITY) as store:
        tables = by_day("steps", pa.Table.from_pylist(rows, schema=SCHEMAS["steps"]))
        assert len(tables) == 2
        store.commit(Segment(number=0, topic="ledger", next_offsets={0: 3}), tables)
    branch = read_branch(Store(tmp_path / "archive"))
    assert [branch.survives(offset) for offset in range(3)] == [True, True, True]


def test_the_fates_that_rows_have_are_read_back_without_those_of_open_groups() -> None:
    prompts = [a_prompt(row, group_size=2) for row in range(3)]
    table = samples([rollout for prompt in prompts for rollout in a_group([0.0, 1.0], prompt=prompt)])
    fates = {
        prompts[0].group_id: Fate("trained", "", 4, 4, 9, frozenset({(0, 1)})),
        prompts[1].group_id: Fate("dropped", "no_spread", None, 5, 11),
    }
    assert fates_in(with_fates(table, fates)) == fates
