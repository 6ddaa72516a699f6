"""Rows of files that people name: what is read, what is a bad row, and what is written. Real files of each format."""

import hashlib
import os
import signal
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from rollstream.offline.paths import OutputPaths
from rollstream.process.crash_points import CRASH_AT
from rollstream.rows.columns import MAX_COLUMNS, Columns
from rollstream.rows.open import open_rows
from rollstream.rows.row import MAX_ROW_BYTES, BadRow, ReadRow
from rollstream.rows.write import rewrite_rows, write_rows
from rollstream.schemas.errors import ConfigurationError
from tests.harness.late import Late

datasets = Late("datasets")

NESTED = [
    {"prompt": "Zähle 🙂", "n": 1, "meta": {"split": "a", "index": 7}, "turns": [{"role": "user", "content": "é"}]},
    {"prompt": None, "n": 2.5, "meta": {"split": "b", "index": None}, "turns": []},
]


def written(path, kind, rows):
    with write_rows(path, kind) as writer:
        for fields in rows:
            writer.write(fields)
    return open_rows(path)


def interrupted(path, kind):
    with write_rows(path, kind) as writer:
        writer.write({"other": 1})
        raise KeyError


def fields_of(source):
    return [row.fields for row in source]


def a_file(tmp_path, *lines):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return open_rows(path)


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "jsonl"), ("a.parquet", "parquet"), ("a", "hf")])
def test_each_format_gives_back_nested_rows_as_they_were_also_after_one_that_failed(tmp_path, name, kind):
    source = written(tmp_path / name, kind, NESTED)
    assert fields_of(source) == NESTED
    assert [row.number for row in source] == [0, 1]  # a second pass gives the same
    source.identity()
    assert source.num_rows == 2
    # A block that ends with an error leaves the file that was there.
    with pytest.raises(KeyError):
        interrupted(tmp_path / name, kind)
    assert fields_of(open_rows(tmp_path / name)) == NESTED
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_long_conversations_are_written_a_few_at_a_time(tmp_path):
    prompt = [{"role": "user", "content": "word " * 200_000}]
    rewrite_rows(tmp_path / "a.parquet", "parquet", lambda: ({"prompt": prompt, "n": n} for n in range(64)))
    metadata = pyarrow.parquet.read_metadata(tmp_path / "a.parquet")
    assert metadata.num_rows == 64
    assert max(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)) <= 32


def test_a_directory_opens_with_load_from_disk_and_one_that_the_library_saved_opens_here(tmp_path):
    written(tmp_path / "ours", "hf", NESTED)
    loaded = datasets.load_from_disk(str(tmp_path / "ours"))
    assert loaded.to_list() == NESTED
    loaded.select([1, 0]).save_to_disk(tmp_path / "theirs")
    assert fields_of(open_rows(tmp_path / "theirs")) == NESTED[::-1]


def test_two_data_sets_of_the_same_columns_have_different_fingerprints(tmp_path):
    for name in ("one", "two"):
        written(tmp_path / name, "hf", NESTED)
    one, two = (datasets.load_from_disk(str(tmp_path / name)) for name in ("one", "two"))
    assert one._fingerprint != two._fingerprint


def test_bad_lines_are_listed_with_their_reason_and_the_rest_goes_on(tmp_path):
    source = a_file(
        tmp_path,
        b'{"prompt": "first"}',
        b'{"prompt": "torn',
        b"\0\0\0\0",
        b"",
        b"null",
        b"[1]",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud83d"}',
        b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"prompt": NaN, "n": 7}',
    )
    rows = list(source)
    assert [(type(row), row.number) for row in rows] == [
        (ReadRow if row in (0, 8) else BadRow, row) for row in range(9)
    ]
    assert (rows[0].fields, rows[8].fields) == ({"prompt": "first"}, {"prompt": None, "n": 7})
    assert rows[8].where == "rows.jsonl line 10"
    whys = ["valid JSON", "NUL", "got null", "got a list", "UTF-8", "surrogate", "nested"]
    assert [why in row.why for why, row in zip(whys, rows[1:8], strict=True)] == [True] * 7
    source.identity()
    assert source.num_rows == 9
    # A row that is nested as deep as the bound is no bad one, nor is a wide one.
    wide = ", ".join(["[[{}]]"] * 500)
    fine = a_file(tmp_path, *(f'{{"prompt": {value}}}'.encode() for value in ("[" * 99 + "]" * 99, f"[{wide}]")))
    assert [type(row) for row in fine] == [ReadRow, ReadRow]


def test_a_line_beyond_the_bound_is_a_bad_row_and_the_next_is_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as stream:
        stream.write(b'{"prompt": "')
        stream.seek(MAX_ROW_BYTES + 100)
        stream.write(b'"}\n{"prompt": "next"}\n')
    bad, good = open_rows(path)
    assert isinstance(bad, BadRow)
    assert f"{MAX_ROW_BYTES} bytes" in bad.why
    assert (good.number, good.fields) == (1, {"prompt": "next"})


def test_text_of_a_parquet_file_that_is_not_utf8_is_a_bad_row_among_good_ones(tmp_path):
    raw = pyarrow.array([b"good", b"\xff\xfe", b"also"], pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, raw.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": text}), tmp_path / "a.parquet")
    rows = list(open_rows(tmp_path / "a.parquet"))
    assert [type(row) for row in rows] == [ReadRow, BadRow, ReadRow]
    assert (rows[1].where, rows[1].why) == ("a.parquet row 1", "its text is not UTF-8")


def test_a_directory_of_parquet_files_is_read_in_the_order_of_the_names(tmp_path):
    for name, value in (("b.parquet", 2), ("a.parquet", 1), ("_old.parquet", 0)):
        pyarrow.parquet.write_table(pyarrow.table({"n": [value]}), tmp_path / name)
    assert [(row.number, row.where, row.fields["n"]) for row in open_rows(tmp_path)] == [
        (0, "a.parquet row 0", 1),
        (1, "b.parquet row 0", 2),
    ]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\n\n", "only empty lines"),
        ("a.jsonl", b"PAR1 and more", "content is parquet"),
        ("a.parquet", b"PAR1 torn", "whole parquet file"),
        ("a.csv", b"a,b", "must end in .jsonl"),
    ],
)
def test_what_makes_a_whole_file_unreadable_is_said(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=why):
        list(open_rows(tmp_path / name))


@pytest.mark.parametrize("name", [b"a\nb.jsonl", b"a\xffb.jsonl", b"a\x7f"])
def test_a_name_that_no_record_holds_is_refused(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    path.write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigurationError, match="its name is no text or has control characters; rename it"):
        open_rows(path)


def test_a_directory_that_is_none_of_ours_or_has_splits_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="neither parquet nor JSONL files"):
        open_rows(tmp_path)
    saved = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"a": 1}])})
    saved.save_to_disk(tmp_path / "both")
    with pytest.raises(ConfigurationError, match="both/train"):
        open_rows(tmp_path / "both")
    (tmp_path / "both/train/state.json").write_text('{"_data_files": [{"filename": "../../secret"}]}')
    with pytest.raises(ConfigurationError, match="expected files beside it"):
        open_rows(tmp_path / "both/train")


def test_the_identity_is_the_name_with_the_sum_that_other_programs_show(tmp_path):
    source = a_file(tmp_path, b'{"a": 1}')
    digest = hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()
    assert source.identity() == f"rows.jsonl@{digest[:12]}"


def test_a_directory_with_other_files_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.tex").write_text("years of work")
    with pytest.raises(ConfigurationError, match="other files"):
        rewrite_rows(tmp_path / "thesis", "hf", lambda: NESTED)
    assert (tmp_path / "thesis/chapter.tex").read_text() == "years of work"


def test_a_process_that_is_killed_while_it_replaces_a_directory_leaves_the_former_one(tmp_path):
    output = tmp_path / "rollouts"
    written(output, "hf", NESTED)
    code = (
        "from rollstream.rows.write import rewrite_rows; from pathlib import Path; import sys\n"
        "rewrite_rows(Path(sys.argv[1]), 'hf', lambda: [{'other': 1}])"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, output], check=False, env={**os.environ, CRASH_AT: "output_moved_aside"}
    )
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    with OutputPaths(output).locked():
        assert fields_of(open_rows(output)) == NESTED
    rewrite_rows(output, "hf", lambda: [{"other": 1}])
    assert fields_of(open_rows(output)) == [{"other": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts"]


def test_as_many_columns_as_the_bound_are_taken_and_with_more_the_former_file_stays(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = [{f"column {number}": number for number in range(MAX_COLUMNS)}]
    columns = Columns()
    columns.see(rows)
    assert len(columns.schema) == MAX_COLUMNS
    path.write_text("former")
    with pytest.raises(ConfigurationError, match="more than 10000 different columns, 'one more' is one of them"):
        rewrite_rows(path, "parquet", lambda: [*rows, {"one more": 1}])
    assert path.read_text() == "former"
    assert [found.name for found in tmp_path.iterdir()] == ["rows.parquet"]
