"""A database file that is garbage, and one that belongs to somebody else."""

import sqlite3
from pathlib import Path

import pytest

from rollstream.process.database import Database, move_aside
from rollstream.schemas.errors import ConfigurationError, DamagedFileError

TABLES = "CREATE TABLE IF NOT EXISTS noted (value TEXT);"


def test_garbage_is_told_from_others_files_and_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database at all, " * 500)
    with pytest.raises(DamagedFileError, match="is damaged"):
        Database(path, TABLES)
    garbage = path.read_bytes()
    assert move_aside(path).read_bytes() == garbage
    with Database(path, TABLES) as database:
        database.run("INSERT INTO noted VALUES ('new')")
        assert database.one("SELECT value FROM noted") == ("new",)


def test_a_log_of_a_damaged_file_does_not_get_into_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database at all, " * 500)
    path.with_name("store.sqlite-wal").write_bytes(b"log" * 1000)
    move_aside(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store.sqlite.damaged"]


def test_a_database_of_another_program_is_not_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE notes (text)")
    theirs.close()
    with pytest.raises(ConfigurationError, match="another program") as refused:
        Database(path, TABLES)
    assert not isinstance(refused.value, DamagedFileError)


def test_its_size_grows_with_what_it_holds_and_shrinks_with_what_leaves(tmp_path: Path) -> None:
    with Database(tmp_path / "store.sqlite", TABLES) as database:
        empty = database.num_bytes
        database.run_many("INSERT INTO noted VALUES (?)", [("x" * 1000,)] * 200)
        full = database.num_bytes
        database.run("DELETE FROM noted")
        assert full > empty + 200_000
        assert database.num_bytes < empty + 20_000
