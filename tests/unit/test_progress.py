"""What is noted of a job: committed in batches, gone on with by the same options alone."""

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rollstream.offline.progress import INPUT, TABLES, Progress, begun_input, progress_at
from rollstream.process.database import Database
from rollstream.schemas.errors import ConfigurationError, MachineError
from tests.harness.collecting import noted_facts, noted_samples
from tests.harness.full_disk import room_for

BEGUN_WITH = {"engine": "scripted", "num_samples": 3, "stop": ["a"], INPUT: "data.jsonl@0123"}


def note_all(progress: Progress, num_rows: int) -> None:
    for row in range(num_rows):
        progress.note(row, 0, {"response": "x" * 1000}, is_completed=True)


def test_what_was_noted_is_there_when_it_is_opened_again_and_the_newest_counts(tmp_path: Path) -> None:
    with progress_at(tmp_path / "p", "collect") as progress:
        progress.begin(BEGUN_WITH, started_at="now")
        progress.note(5, 1, {"failure": "deadline"}, attempts=1, is_completed=False)
        progress.note(5, 0, {"response": "a\nb \ud800"}, is_completed=True)
        progress.note(5, 1, {"failure": "engine"}, attempts=2, is_completed=False)
    with progress_at(tmp_path / "p", "collect") as progress:
        assert (progress.begun_with, progress.fact("started_at"), progress.last_row) == (BEGUN_WITH, "now", 5)
        # Half of a surrogate pair is no text.
        assert list(progress.of_row(5)) == [(0, 1, {"response": "a\nb ?"}), (1, 2, {"failure": "engine"})]
        assert (progress.num_ended(), progress.num_ended(is_completed=True)) == (2, 1)
    assert begun_input(tmp_path / "p", "collect") == "data.jsonl@0123"
    assert begun_input(tmp_path / "other", "collect") == ""


def test_what_is_left_to_ask_is_known_row_by_row(tmp_path: Path) -> None:
    with progress_at(tmp_path / "p", "collect") as progress:
        for row in range(3):
            progress.note(row, 0, {}, is_completed=True)
            progress.note(row, 1, {}, attempts=1 + row, is_completed=False)
        assert [progress.to_ask(row, 2, 3) for row in range(4)] == [{1: 1}, {1: 2}, {}, {0: 0, 1: 0}]
        assert [progress.first_to_ask(2, most) for most in (3, 2, 1)] == [0, 0, 3]
        progress.forget_attempts()
        assert progress.to_ask(2, 2, 3) == {1: 0}


def test_notes_wait_for_their_batch_and_no_longer(tmp_path: Path) -> None:
    with progress_at(tmp_path / "p", "collect") as progress:
        progress.begin(BEGUN_WITH)
        for row in range(63):
            progress.note(row, 0, {}, is_completed=True)
        assert noted_samples(tmp_path / "p") == []
        progress.note(63, 0, {}, is_completed=True)
        assert len(noted_samples(tmp_path / "p")) == 64
        progress.note(64, 0, {"response": "x" * 2**22}, is_completed=True)
        assert len(noted_samples(tmp_path / "p")) == 65


@pytest.mark.parametrize("name", [*BEGUN_WITH, "new"])
def test_another_option_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    with progress_at(tmp_path / "p", "collect") as progress:
        progress.begin(BEGUN_WITH)
        progress.refuse_other(BEGUN_WITH, "begin anew")
        with pytest.raises(ConfigurationError, match=rf"{tmp_path}/p.* {name} = .*other.*begin anew"):
            progress.refuse_other({**BEGUN_WITH, name: "other"}, "begin anew")


def test_jobs_share_a_file_which_goes_with_the_last_one(tmp_path: Path) -> None:
    for job in ("collect", "analyze-rewards"):
        with progress_at(tmp_path / "p", job) as progress:
            assert progress.begun_with is None
            progress.begin({"job": job})
            progress.note(0, 0, {}, is_completed=True)
    with progress_at(tmp_path / "p", "collect") as progress:
        progress.finish(keeps_samples=False, is_finished=True)
    assert noted_facts(tmp_path / "p")["is_finished"] is True
    with progress_at(tmp_path / "p", "collect") as progress:
        progress.clear()
    assert len(noted_samples(tmp_path / "p")) == 1
    with suppress(KeyError), progress_at(tmp_path / "p", "analyze-rewards") as progress:
        progress.clear()
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_somebody_else_is_refused_and_stays_unless_all_is_to_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("my notes, which are long enough to be looked at\n" * 20)
    before = path.read_text()
    with pytest.raises(ConfigurationError, match=f"{path} is damaged, or of another program"):
        begun_input(path, "collect")
    assert path.read_text() == before
    with progress_at(path, "collect", replaces_damaged=True) as progress:
        assert progress.begun_with is None


def test_a_database_of_another_program_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE users (name)")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=f"{path} is a database of another program"), progress_at(path, "job"):
        pass
    assert path.read_bytes() == before


def test_what_a_killed_process_left_is_gone_on_with_without_shared_memory(tmp_path: Path) -> None:
    with progress_at(tmp_path / "p", "collect") as progress:
        progress.begin(BEGUN_WITH)
        # As it is after kill -9: the log was not moved into the file.
        for path in tmp_path.glob("p*"):
            shutil.copy(path, tmp_path / path.name.replace("p", "killed", 1))
    with progress_at(tmp_path / "killed", "collect") as progress:
        assert progress.begun_with == BEGUN_WITH
        assert not (tmp_path / "killed-shm").exists()


def test_a_full_disk_takes_back_what_was_not_committed_and_names_the_file(tmp_path: Path) -> None:
    with Database(tmp_path / "p", TABLES) as database:
        progress = Progress(database, "collect")
        progress.begin(BEGUN_WITH)
        with room_for(100_000), pytest.raises(MachineError, match=f"{tmp_path}/p.*make room"):
            note_all(progress, 1000)
        num_noted = progress.num_ended()
        assert num_noted % 64 == 0
        progress.note(num_noted, 0, {}, is_completed=True)
        progress.commit()
        assert progress.num_ended() == num_noted + 1


def test_a_file_belongs_to_one_process_and_a_scratch_database_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Database(tmp_path / "p", TABLES),
        pytest.raises(ConfigurationError, match=f"another process writes {tmp_path}/p"),
    ):
        Database(tmp_path / "p", TABLES)
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    with Database(None, "CREATE TABLE numbers (number)") as scratch:
        scratch.run_many("INSERT INTO numbers VALUES (?)", ((number,) for number in range(1000)))
        assert scratch.one("SELECT sum(number) FROM numbers") == (499_500,)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
