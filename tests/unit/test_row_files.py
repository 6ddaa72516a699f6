"""Rows of files that people name: what is read, what is a bad row, and what is written. Real files of each format."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from rollstream.offline.paths import Places
from rollstream.process.crash_points import CRASH_AT
from rollstream.rows.open import open_rows
from rollstream.rows.row import MAX_ROW_BYTES, BadRow, ReadRow
from rollstream.rows.write import rewrite_rows, write_rows
from rollstream.schemas.errors import ConfigurationError

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
def test_each_format_gives_back_nested_rows_as_they_were(tmp_path, name, kind):
    source = written(tmp_path / name, kind, NESTED)
    assert fields_of(source) == NESTED
    assert [row.number for row in source] == [0, 1]  # a second pass gives the same
    source.identity()
    assert source.num_rows == 2
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("name", "kind"), [("a.parquet", "parquet"), ("a", "hf")])
def test_a_column_whose_types_do_not_agree_becomes_json_text_and_comes_back_as_it_was(tmp_path, name, kind):
    rows = [{"a": 1, "mixed": 5, "empty": {}}, {"mixed": "five", "large": 2**70}, {"mixed": [5], "a": 2}]
    assert fields_of(written(tmp_path / name, kind, rows)) == [
        {"a": 1, "mixed": 5, "empty": {}, "large": None},
        {"a": None, "mixed": "five", "empty": None, "large": 2**70},
        {"a": 2, "mixed": [5], "empty": None, "large": None},
    ]


def test_other_programs_read_a_column_of_mixed_types_as_json_text(tmp_path):
    rows = [{"mixed": 5}, {"mixed": "five"}, {"mixed": [5]}, {"mixed": None}]
    written(tmp_path / "a.parquet", "parquet", rows)
    assert pandas.read_parquet(tmp_path / "a.parquet")["mixed"].tolist() == ["5", '"five"', "[5]", None]
    written(tmp_path / "a", "hf", rows)
    assert datasets.load_from_disk(str(tmp_path / "a"))["mixed"][:] == ["5", '"five"', "[5]", None]


def test_a_number_that_fits_no_fraction_turns_its_column_to_text_in_a_second_try(tmp_path):
    # 2**60 + 1 is an integer of 64 bits, and no double: only the values tell, not the types.
    rows = [{"n": 2**60 + 1}, *({"n": 1} for _ in range(1000)), {"n": 0.5}]
    found = fields_of(written(tmp_path / "a.parquet", "parquet", rows))
    assert (found[0], found[-1], len(found)) == ({"n": 2**60 + 1}, {"n": 0.5}, 1002)


def test_an_object_with_a_key_for_each_row_becomes_json_text_instead_of_thousands_of_columns(tmp_path):
    rows = [{"by_name": {f"key {row}": row}} for row in range(1500)]
    found = fields_of(written(tmp_path / "a.parquet", "parquet", rows))
    assert found[1499]["by_name"] == {"key 1499": 1499}
    assert pyarrow.parquet.read_schema(tmp_path / "a.parquet").field("by_name").type == pyarrow.string()


@pytest.mark.parametrize(("name", "kind"), [("a.parquet", "parquet"), ("a", "hf")])
@pytest.mark.parametrize("depth", [21, 70, 99, 400, 900])
def test_a_column_that_is_nested_deeper_than_a_reader_takes_becomes_json_text(tmp_path, name, kind, depth):
    deep = json.loads("[" * depth + "]" * depth)
    first, second = written(tmp_path / name, kind, [{"n": 1, "deep": deep}, {"n": 2, "deep": [1]}])
    if depth < 100:
        assert first.fields == {"n": 1, "deep": deep}
    else:
        # As in a JSONL file, of which no row is that deep.
        assert first.why == "its column 'deep' is nested too deeply"
    assert second.fields == {"n": 2, "deep": [1]}


def test_numbers_that_are_not_finite_are_written_as_null_and_numpys_as_their_values(tmp_path):
    rows = [{"reward": float("nan"), "values": np.array([1, 2]), "count": np.int64(3)}]
    assert fields_of(written(tmp_path / "a.jsonl", "jsonl", rows)) == [{"reward": None, "values": [1, 2], "count": 3}]


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


def test_parquet_of_pandas_gives_plain_values(tmp_path):
    frame = pandas.DataFrame(
        {
            "turns": [np.array([{"role": "user"}], dtype=object)],
            "when": [datetime(2026, 3, 1, 12, tzinfo=UTC)],
            "score": [float("nan")],
            "raw": [b"caf\xc3\xa9"],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    [fields] = fields_of(open_rows(tmp_path / "a.parquet"))
    assert fields == {
        "turns": [{"role": "user"}],
        "when": "2026-03-01T12:00:00+00:00",
        "score": None,
        "raw": "café",
    }
    assert type(fields["turns"]) is list


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
        b"[" * 100_000,
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


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "jsonl"), ("a.parquet", "parquet"), ("a", "hf")])
def test_a_block_that_ends_with_an_error_leaves_the_file_that_was_there(tmp_path, name, kind):
    written(tmp_path / name, kind, NESTED)
    with pytest.raises(KeyError):
        interrupted(tmp_path / name, kind)
    assert fields_of(open_rows(tmp_path / name)) == NESTED
    assert [file.name for file in tmp_path.iterdir()] == [name]


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
    with Places(output).locked():
        assert fields_of(open_rows(output)) == NESTED
    rewrite_rows(output, "hf", lambda: [{"other": 1}])
    assert fields_of(open_rows(output)) == [{"other": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts"]
