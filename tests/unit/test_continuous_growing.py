"""A JSONL file that grows: only its new lines are read as rows, and a file that changed anywhere is read anew."""

import json
import random
from pathlib import Path

import pytest

from rollstream.offline.continuous.growing import GrownRows, ReadTo
from rollstream.offline.continuous.production import PROGRESS
from rollstream.offline.continuous.sources import FilesSource
from rollstream.offline.continuous.taken import TakenRows
from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.row import MAX_ROW_BYTES, BadRow, ReadRow
from rollstream.schemas.errors import ConfigurationError


def line(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt}).encode() + b"\n"


def read(path: Path, earlier: ReadTo | None = None) -> tuple[list[str], ReadTo]:
    """Where the rows are that come, and how far it was read."""
    grown = GrownRows(path, earlier)
    found = [row.where.rpartition(" ")[2] if isinstance(row, ReadRow) else row.why for row in grown]
    assert grown.read_to is not None
    return found, grown.read_to


def test_what_was_added_is_read_and_its_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + line("a") + b"\n" + line("b"))
    found, read_to = read(path)
    assert found == ["1", "3"]
    assert (read_to.end, read_to.num_lines) == (path.stat().st_size, 3)
    assert read(path, read_to) == ([], read_to)
    with path.open("ab") as stream:
        stream.write(line("c") + b"torn")
    found, later = read(path, read_to)
    assert found[0] == "4"
    assert found[1].startswith("it is not valid JSON")
    assert later.num_lines == 4
    with path.open("ab") as stream:
        stream.write(b" off\n" + line("d"))
    found, last = read(path, ReadTo.of(json.loads(json.dumps(later.noted()))))
    assert [one[:26] for one in found] == ["it is not valid JSON: Expe", "6"]
    assert last == read(path)[1]


@pytest.mark.parametrize("torn", [b'{"prompt": "c', b'{"prompt": "\xc3', b"x"])
def test_a_last_line_that_is_half_written_is_left_for_the_next_look_where_there_is_one(
    tmp_path: Path, torn: bytes
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a") + torn)
    assert len(list(GrownRows(path, None))) == 2, "nobody looks again: it is listed as bad"
    grown = GrownRows(path, None, is_read_again=True)
    assert [row.where for row in grown] == ["a.jsonl line 1"]
    path.write_bytes(line("a") + line("c"))
    later = GrownRows(path, grown.read_to, is_read_again=True)
    assert [row.where for row in later] == ["a.jsonl line 2"]


def test_a_last_line_that_lacks_only_its_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a") + line("b").rstrip())
    assert len(list(GrownRows(path, None, is_read_again=True))) == 2


@pytest.mark.parametrize("place", [0, 15, 40, 85])
def test_a_file_that_changed_anywhere_is_read_from_its_start(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("aaaa") * 5)
    read_to = read(path)[1]
    content = bytearray(path.read_bytes() + line("new"))
    assert read(path, read_to)[0] == []
    content[place] ^= 1
    path.write_bytes(content)
    assert len(read(path, read_to)[0]) == 6


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a") * 5)
    read_to = read(path)[1]
    path.write_bytes(line("a") * 2)
    assert read(path, read_to)[0] == ["1", "2"]


def test_a_line_beyond_the_bound_that_is_not_whole_yet_is_met_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a"))
    with path.open("ab") as stream:
        stream.truncate(MAX_ROW_BYTES + 1000)
    found, read_to = read(path)
    assert (found, read_to.num_lines, read_to.end) == (
        ["1", f"it is longer than {MAX_ROW_BYTES} bytes"],
        1,
        len(line("a")),
    )
    with path.open("ab") as stream:
        stream.write(b"\n" + line("b"))
    found, read_to = read(path, read_to)
    assert (found, read_to.num_lines) == ([f"it is longer than {MAX_ROW_BYTES} bytes", "3"], 3)


def test_however_a_file_grows_and_is_looked_at_each_row_is_found(tmp_path: Path) -> None:
    chance = random.Random(7)
    path, content = tmp_path / "a.jsonl", b"".join(line(f"row {row} {'x' * (row % 50)}") for row in range(300))
    seen: set[str] = set()
    read_to, end = None, 0
    while end < len(content):
        end = min(end + chance.randint(1, 400), len(content))
        path.write_bytes(content[:end])
        grown = GrownRows(path, read_to)
        seen |= {row.fields["prompt"] for row in grown if isinstance(row, ReadRow)}
        read_to = grown.read_to
    assert seen == {row.fields["prompt"] for row in JsonlRows(path) if isinstance(row, ReadRow)}
    assert len(seen) == 300


def test_a_look_at_a_file_that_grew_gives_its_new_rows_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line("a") + line("b"))
    with TakenRows(tmp_path / PROGRESS) as taken:
        source = FilesSource(path, settled_seconds=0)

        def look() -> list[str]:
            found = [one.row.fields["prompt"] for one in source.look(taken) if isinstance(one.row, ReadRow)]
            taken.note_marks(source.marks())
            return found

        assert look() == ["a", "b"]
        assert look() == []
        with path.open("ab") as stream:
            stream.write(line("c"))
        assert look() == ["c"]
        # What an earlier version noted: size and time.
        taken.note_marks({str(path): [1, 2]})
        assert look() == ["a", "b", "c"]
        path.write_bytes(line("d"))
        assert look() == ["d"]


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*gone\.jsonl: No such file"):
        list(GrownRows(tmp_path / "gone.jsonl", None))
    for earlier in (None, ReadTo(10, 1, "")):
        with pytest.raises(ConfigurationError, match="cannot read /proc/self/mem: Input/output error"):
            list(GrownRows(Path("/proc/self/mem"), earlier))


def test_a_bad_row_is_one_as_in_any_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\0\0\n[1]\n" + line("a"))
    for rows in (GrownRows(path, None), JsonlRows(path)):
        first, second, third = rows
        assert isinstance(first, BadRow)
        assert isinstance(second, BadRow)
        assert isinstance(third, ReadRow)
        assert ("NUL" in first.why, second.why) == (True, "expected a JSON object, got a list")
        assert (third.where, third.fields) == ("a.jsonl line 3", {"prompt": "a"})
