"""What breaks under a continuous collection: disks that are away or full, files that change, pipes, clocks."""

import json
import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollstream.offline.collection import CollectReport
from rollstream.offline.continuous import production
from rollstream.offline.continuous.production import PROGRESS, Production, Schedule
from rollstream.offline.continuous.run import run_continuous
from rollstream.offline.continuous.sources import FilesSource, FoundRow
from rollstream.offline.continuous.taken import BatchRows, TakenRows
from rollstream.offline.continuous.watch import Watch
from rollstream.offline.live import LiveCounts
from rollstream.offline.progress import Progress
from rollstream.offline.summary import CollectSummary
from rollstream.process.health import Health
from rollstream.process.stop import Stop
from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import Kind, write_rows
from rollstream.schemas.errors import BrokenWorldError, ConfigurationError
from tests.harness.collecting import a_job, lines_of, settings_for
from tests.harness.full_disk import room_for

TWO_MONTHS_SECONDS = 60 * 86400


def look(source: Path, output: Path, kind: Kind = "jsonl") -> list[str]:
    """What one look said."""
    said: list[str] = []
    run_continuous(a_job(source, output, max_tokens=8, format=kind), Stop(), said.append)
    return said


def asked(output: Path) -> list[str]:
    """What was asked in all parts of JSONL, in their order."""
    numbers = range(1, 1 + len(list(output.glob("part-??????.jsonl"))))
    return [row["prompt"] for number in numbers for row in lines_of(output / f"part-{number:06}.jsonl")]


def put(path: Path, *prompts: str) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return path


def write_much(path: Path, kind: Kind) -> None:
    with write_rows(path, kind) as writer:
        for row in range(5000):
            writer.write({"n": f"{row} {'x' * 100}"})


def let_months_pass(output: Path, table: str = "rows", column: str = "met_at") -> None:
    """All that is known was met, or has gone, two months ago."""
    with closing(sqlite3.connect(output / PROGRESS)) as database, database:
        database.execute(f"UPDATE {table} SET {column} = {column} - ?", (TWO_MONTHS_SECONDS,))


def test_a_directory_that_is_away_for_a_while_gives_no_row_twice_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, away, output = tmp_path / "in", tmp_path / "away", tmp_path / "out"
    folder.mkdir()
    put(folder / "one.jsonl", "a", "b")
    look(folder, output)
    let_months_pass(output)
    folder.rename(away)
    with TakenRows(output / PROGRESS) as taken, caplog.at_level(logging.WARNING):
        # As a watch finds it that goes on meanwhile.
        assert list(FilesSource(folder, settled_seconds=0).look(taken)) == []
        assert taken.forget(days=30) == 0
    assert "is not there: nothing is taken until it is back" in caplog.text
    # An empty directory is what is left where a disk was mounted.
    folder.mkdir()
    look(folder, output)
    folder.rmdir()
    away.rename(folder)
    put(folder / "two.jsonl", "c")
    look(folder, output)
    assert asked(output) == ["a", "b", "c"]


def test_rows_of_a_file_that_is_gone_for_good_are_forgotten_in_the_end(tmp_path: Path) -> None:
    with TakenRows(tmp_path / PROGRESS) as taken:
        assert taken.is_new(b"a row", "/in/one.jsonl")
        taken.note_marks({"/in/one.jsonl": [1, 2]})
        taken.unmark("/in/one.jsonl")
    let_months_pass(tmp_path)
    with TakenRows(tmp_path / PROGRESS) as taken:
        assert taken.forget(days=30) == 0
    let_months_pass(tmp_path, "gone", "since")
    with TakenRows(tmp_path / PROGRESS) as taken:
        assert taken.forget(days=30) == 1
        assert taken.is_new(b"a row", "/in/one.jsonl")


def test_what_the_machine_did_not_give_is_read_at_a_later_look(tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    saved = folder / "saved.parquet"
    folder.mkdir()
    with write_rows(saved, "hf") as writer:
        writer.write({"prompt": "a"})
    [shard] = saved.glob("*.arrow")
    # A disk that is away, in the middle of a data set.
    shard.rename(tmp_path / "shard")
    look(folder, output)
    look(folder, output)
    listed = lines_of(output / "part-000001_bad_rows.jsonl")
    assert len(listed) == 1
    assert "No such file" in listed[0]["why"]
    (tmp_path / "shard").rename(shard)
    look(folder, output)
    assert [row["prompt"] for row in lines_of(output / "part-000002.jsonl")] == ["a"]


def test_damaged_content_is_listed_once_and_not_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "torn.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    with TakenRows(tmp_path / PROGRESS) as taken:
        source = FilesSource(folder, settled_seconds=0)
        [found] = source.look(taken)
        assert isinstance(found.row, BadRow)
        taken.note_marks(source.marks())
        assert list(source.look(taken)) == []


def test_a_disk_that_fails_while_it_is_read_is_told_with_its_file() -> None:
    # This file opens, and reading it fails: nothing is mapped at its start.
    with pytest.raises(ConfigurationError, match="cannot read /proc/self/mem: Input/output error; is its disk there"):
        list(JsonlRows(Path("/proc/self/mem")))
    with pytest.raises(ConfigurationError, match="cannot read /proc/self/mem"):
        JsonlRows(Path("/proc/self/mem")).identity()


def test_a_pipe_among_the_files_holds_up_nobody(tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    os.mkfifo(folder / "a.jsonl")
    put(folder / "b.jsonl", "b")
    look(folder, output)
    assert asked(output) == ["b"]
    [listed] = lines_of(output / "part-000001_bad_rows.jsonl")
    assert "it is no file, but a pipe or a device" in listed["why"]
    with pytest.raises(ConfigurationError, match="it is no file, but a pipe or a device; name a file"):
        open_rows(folder / "a.jsonl")


def test_a_file_from_a_clock_that_is_ahead_is_read(tmp_path: Path) -> None:
    source = put(tmp_path / "one.jsonl", "a")
    later = time.time() + 3600
    os.utime(source, (later, later))
    with TakenRows(tmp_path / PROGRESS) as taken:
        assert len(list(FilesSource(source, settled_seconds=2.0).look(taken))) == 1


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = put(folder / "one.jsonl", *(f"{row}" for row in range(100_000)))
    with TakenRows(tmp_path / PROGRESS) as taken:
        source = FilesSource(folder, settled_seconds=0)
        found = source.look(taken)
        first = next(found)
        put(tmp_path / "new", "new").rename(path)
        assert len([first, *found]) == 100_000
        taken.note_marks(source.marks())
        [again] = source.look(taken)
        assert again.row.where == "one.jsonl line 1"
        assert not isinstance(again.row, BadRow)
        assert again.row.fields == {"prompt": "new"}


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "jsonl"), ("a.parquet", "parquet"), ("a", "hf")])
def test_a_full_disk_is_a_broken_world_and_the_former_file_stays(tmp_path: Path, name: str, kind: Kind) -> None:
    path = tmp_path / name
    with write_rows(path, kind) as writer:
        writer.write({"n": "former"})
    with (
        room_for(50_000),
        pytest.raises(BrokenWorldError, match=r"cannot write .*: File too large; make room, and run"),
    ):
        write_much(path, kind)
    assert [found.fields for found in open_rows(path) if not isinstance(found, BadRow)] == [{"n": "former"}]
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("num_bytes", [4096, 20_000, 60_000, 120_000, 200_000, 400_000])
def test_wherever_the_disk_is_full_a_later_look_has_each_row_once(tmp_path: Path, num_bytes: int) -> None:
    names = [f"{row:04}{'x' * 100}" for row in range(1500)]
    source, output = put(tmp_path / "one.jsonl", *names), tmp_path / "out"
    with room_for(num_bytes), pytest.raises(BrokenWorldError, match=r"cannot write .*; make room"):
        look(source, output)
    look(source, output)
    assert asked(output) == names
    assert not list(output.glob(".part*"))
    shutil.rmtree(output)


class OneRow:
    """Gives one row, and asks to stop at a look."""

    name = "one row"
    is_endless = True

    def __init__(self, stop: Stop, num_looks: int) -> None:
        self._stop = stop
        self._left = num_looks

    def look(self, taken: TakenRows) -> Iterator[FoundRow]:
        """The row, each time."""
        self._left -= 1
        if not self._left:
            self._stop.ask()
        yield FoundRow(ReadRow(0, "row 0", {"prompt": "1="}))

    def marks(self) -> dict[str, Any]:
        """None."""
        return {}


def num_tries(directory: Path, num_looks: int, *, is_endless: bool = True) -> int:
    """How often a part whose only sample always fails is asked."""
    stop, tried = Stop(), [0]
    source = OneRow(stop, num_looks)
    source.is_endless = is_endless

    def collect_batch(rows: BatchRows, output: Path, progress: Progress) -> CollectReport:
        tried[0] += 1
        summary = CollectSummary(max_attempts=3)
        summary.num_samples = 1
        return CollectReport(settings=settings_for(output), counts=LiveCounts(), summary=summary)

    with TakenRows(directory / PROGRESS) as taken:
        Production(
            directory=directory, taken=taken, source=source, kind="jsonl", prompt_key="prompt",
            max_attempts=3, collect_batch=collect_batch, sink=None, say=lambda line: None,
            watch=Watch(Health(), stuck_seconds=60.0),
        ).run(Schedule(every_seconds=0.001), stop)  # fmt: skip
    return tried[0]


def test_a_server_that_is_gone_for_a_while_does_not_use_up_the_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert num_tries(tmp_path, num_looks=6) == 1
    # A restart tries at once, and then waits too.
    assert num_tries(tmp_path, num_looks=6) == 1
    monkeypatch.setattr(production, "_RETRY_SECONDS", 0.0)
    assert num_tries(tmp_path, num_looks=6) == 1, "the third is the last"
    with TakenRows(tmp_path / PROGRESS) as taken:
        assert taken.open_batches() == []
    (tmp_path / "other").mkdir()
    assert num_tries(tmp_path / "other", num_looks=6) == 3
    # One that has no more rows goes on as long as a part is open, and no longer.
    (tmp_path / "another").mkdir()
    assert num_tries(tmp_path / "another", num_looks=1000, is_endless=False) == 3
