"""Which entries of an archived ledger survive and how groups ended, as pandas and DuckDB find it in the files."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollstream.archive.appending import Appender
from rollstream.history.ledger import LedgerFold, surviving
from rollstream.schemas.errors import ConfigurationError, InconsistentLedgerError
from rollstream.schemas.ledger import ClosedGroup, EntryKind, GroupOutcome, LedgerEntry, SkippedRecord
from tests.harness.archiving import a_piece, write_archive, writing
from tests.harness.builders import an_entry
from tests.harness.late import Late

duckdb = Late("duckdb")
reading = Late("rollstream.archive.reading")

START = an_entry(EntryKind.RESTART, step=0, weight_version=0, parent_version=None)


def closing(*groups: int, outcome: GroupOutcome = GroupOutcome.TRAINED) -> tuple[ClosedGroup, ...]:
    return tuple(ClosedGroup(group_id=f"{number:032x}", outcome=outcome, reason="") for number in groups)


def a_step(version: int, parent: int, number: int, *groups: int) -> LedgerEntry:
    return an_entry(step=number, weight_version=version, parent_version=parent, closed=closing(*groups))


def some_drops(version: int, *groups: int) -> LedgerEntry:
    return an_entry(EntryKind.DROPS, weight_version=version, closed=closing(*groups, outcome=GroupOutcome.DROPPED))


def a_restart(version: int, parent: int, number: int) -> LedgerEntry:
    return an_entry(EntryKind.RESTART, step=number, weight_version=version, parent_version=parent)


def a_repair(*offsets: int, version: int = 9) -> LedgerEntry:
    skipped = tuple(SkippedRecord(topic="ledger", partition=0, offset=offset) for offset in offsets)
    return an_entry(EntryKind.SKIP, weight_version=version, skipped=skipped)


class Found(NamedTuple):
    """Offsets of the entries that survive, and group -> (the offset that closed it, outcome)."""

    entries: list[int]
    fates: dict[str, tuple[int, str]]


def found(directory: Path) -> Found:
    """What pandas finds, and DuckDB must find too."""
    tables = reading.joined(directory)
    fates = tables.groups[tables.groups.survives]
    by_pandas = Found(
        tables.steps.ledger_offset[tables.steps.survives].tolist(),
        dict(zip(fates.group_id, zip(fates.ledger_offset, fates.outcome, strict=True), strict=True)),
    )
    with duckdb.connect() as database:
        database.execute(f"SET VARIABLE archive = '{directory}'")
        database.execute((directory / "views.sql").read_text())
        entries = database.execute("SELECT ledger_offset FROM steps WHERE survives ORDER BY ALL").fetchall()
        groups = database.execute("SELECT group_id, ledger_offset, outcome FROM groups WHERE survives").fetchall()
    assert by_pandas == Found(
        [one for (one,) in entries], {group: (offset, outcome) for group, offset, outcome in groups}
    )
    return by_pandas


def archived(directory: Path, entries: Sequence[LedgerEntry], sizes: Sequence[int] = ()) -> Path:
    """The entries in pieces of these sizes, each written by a process of its own; at last one with the rest."""
    first = 0
    for size in (*sizes, len(entries)):
        with writing(directory) as archive:
            if entries[first : first + size]:
                Appender(archive).append(a_piece("ledger", entries[first : first + size], first))
        first += size
    return directory


@pytest.mark.parametrize(
    ("entries", "survivors"),
    [
        ([START, a_step(1, 0, 1), some_drops(1), a_step(2, 1, 2), a_restart(3, 1, 1), a_step(4, 3, 2)], [0, 1, 4, 5]),
        ([START, a_step(1, 0, 1), a_step(9, 5, 2), a_step(2, 1, 2)], [0, 1, 3]),  # a stranger's
        ([START, a_step(9, 0, 1), a_step(1, 0, 1)], [0, 1]),
        ([START, a_step(9, 0, 1), a_step(1, 0, 1), a_repair(1)], [0, 2]),
        ([START, a_step(9, 0, 1), a_step(1, 0, 1), a_repair(1), a_step(2, 1, 2), a_repair(2)], [0]),
        ([START, a_repair(2), a_step(1, 0, 1), a_step(2, 0, 1)], [0, 3]),  # named before it came
    ],
)
@pytest.mark.parametrize("sizes", [(), (1, 1, 1, 1, 1), (2, 2)])
def test_what_a_restart_cuts_a_stranger_writes_or_a_repair_names_does_not_survive(
    tmp_path: Path, entries: list[LedgerEntry], survivors: list[int], sizes: tuple[int, ...]
) -> None:
    assert found(archived(tmp_path / "archive", entries, sizes)).entries == survivors


def test_the_first_surviving_entry_that_closes_a_group_decides_its_fate(tmp_path: Path) -> None:
    entries = [
        START, a_step(1, 0, 1, 7), some_drops(1, 8, 7), a_step(2, 1, 2, 9), a_restart(3, 1, 1), a_step(4, 3, 2, 8),
        some_drops(4, 8),
    ]  # fmt: skip
    assert found(archived(tmp_path / "archive", entries, (2, 2))).fates == {
        f"{7:032x}": (1, "trained"), f"{8:032x}": (5, "trained"),
    }  # fmt: skip


def test_a_process_that_was_killed_between_two_tables_is_followed_by_one_that_doubles_nothing(tmp_path: Path) -> None:
    entries = [START, a_step(9, 0, 1, 1), a_step(1, 0, 1, 2), a_repair(1), a_step(2, 1, 2, 3)]
    whole = found(archived(tmp_path / "whole", entries))
    for last in ("groups", "passed_over"):
        directory = archived(tmp_path / last, entries[:4])
        for table in ("steps", "groups") if last == "passed_over" else ("steps",):
            [written] = (directory / table).glob("ledger-*.parquet")
            written.unlink()
        assert found(archived(directory, entries)) == whole


def test_what_two_processes_wrote_to_a_bucket_at_once_counts_once(tmp_path: Path) -> None:
    entries = [START, a_step(9, 0, 1), a_step(1, 0, 1), a_step(2, 1, 2), a_step(3, 2, 3), a_repair(1), a_step(4, 3, 4)]
    directory = archived(tmp_path / "one", entries[:4])
    shutil.copytree(archived(tmp_path / "other", entries[:3], (1,)), directory, dirs_exist_ok=True)
    for first, end in ((4, 5), (5, 7)):
        with writing(directory) as archive:
            Appender(archive).append(a_piece("ledger", entries[first:end], first))
    assert found(directory).entries == [0, 2, 3, 4, 6]


def an_entry_like(fold: LedgerFold, kind: str, number: int) -> LedgerEntry:
    """The next entry of a ledger whose fold this is; a stranger's may contradict."""
    current, following = fold.current_version or 0, fold.max_version + 1
    return {
        "step": a_step(following, current, fold.step + 1, number),
        "drops": some_drops(current, number),
        "restart": a_restart(following, number % following, 0),
        "stranger": a_step(number, number, 1, number),
    }[kind]


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["step", "drops", "restart", "stranger"]), st.integers(0, 20)), max_size=30),
    st.lists(st.integers(1, 9), max_size=3),
)
def test_it_is_what_the_trainers_own_fold_says(choices: list[tuple[str, int]], sizes: list[int]) -> None:
    entries, fold = [START], LedgerFold()
    fold.add(START)
    taken = {0: START}
    for offset, (kind, number) in enumerate(choices, start=1):
        entries.append(an_entry_like(fold, kind, number))
        with suppress(InconsistentLedgerError):
            fold.add(entries[-1])
            taken[offset] = entries[-1]
    survivors = surviving(taken.values())
    # By identity: two entries may be equal.
    chain = [id(entry) for entry in survivors.chain]
    with TemporaryDirectory() as directory:
        archive = found(archived(Path(directory) / "archive", entries, sizes))
    assert [id(entries[offset]) for offset in archive.entries] == chain
    assert {group: outcome for group, (_, outcome) in archive.fates.items()} == {
        group: closed.outcome.value for group, closed in survivors.closed.items()
    }


@pytest.mark.parametrize("table", ["steps", "groups"])
def test_a_ledger_with_a_gap_or_a_damaged_file_is_refused_since_nothing_after_it_would_survive(
    tmp_path: Path, table: str
) -> None:
    directory = archived(tmp_path / "archive", [START, a_step(1, 0, 1, 1), a_step(2, 1, 2, 2)], (1, 1))
    _, middle, _ = sorted((directory / table).glob("ledger-*.parquet"))
    content = middle.read_bytes()
    middle.write_bytes(content[:-100])
    with pytest.raises(ConfigurationError, match=rf"{middle.name} is damaged"):
        reading.joined(directory)
    middle.unlink()
    with pytest.raises(ConfigurationError, match=rf"{table} lacks ledger/0: offsets 1 to 1"):
        reading.joined(directory)


def test_an_archive_of_nothing_has_empty_tables(tmp_path: Path) -> None:
    directory = write_archive(tmp_path / "archive")
    assert found(directory) == Found([], {})
    assert [len(table) for table in reading.joined(directory, columns=["reward"])] == [0, 0, 0, 0]
