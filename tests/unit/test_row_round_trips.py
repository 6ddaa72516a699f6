"""Rows come out of each format as they went in, also those that no type of a column holds."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollstream.offline.tasks import task_of
from rollstream.rows.columns import is_json_text
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import Kind, write_rows
from tests.harness.collecting import collected, settings_for

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    # Text that only looks like JSON.
    | st.sampled_from(["5", "[5]", "{}", "null", '"five"', "[", ""])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
ROWS = st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=1, max_size=4), min_size=1, max_size=6)


def written(path: Path, kind: Kind, rows: list[dict[str, Any]]) -> list[ReadRow | BadRow]:
    with write_rows(path, kind) as writer:
        for fields in rows:
            writer.write(fields)
    return list(open_rows(path))


def without_nulls(value: Any) -> Any:
    """What a file of columns keeps of a value: an absent field and one that is null are the same there."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "jsonl"), ("a.parquet", "parquet"), ("a", "hf")])
@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_any_rows_come_back_as_they_were(name: str, kind: Kind, rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        found = written(Path(folder) / name, kind, rows)
        again = written(Path(folder) / f"again {name}", kind, [row.fields for row in found if isinstance(row, ReadRow)])
    for rows_read in (found, again):
        assert [without_nulls(row.fields) for row in rows_read if isinstance(row, ReadRow)] == without_nulls(rows)


def test_text_that_looks_like_json_stays_text_in_a_column_of_text() -> None:
    rows = [{"answer": "5"}, {"answer": "[1]"}, {"answer": "null"}]
    with TemporaryDirectory() as folder:
        found = written(Path(folder) / "a.parquet", "parquet", rows)
    assert [row.fields for row in found if isinstance(row, ReadRow)] == rows


def test_a_file_of_another_program_with_json_texts_keeps_them(tmp_path: Path) -> None:
    """Only the mark in the column's metadata tells, and nobody else sets it."""
    table = pyarrow.table({"mixed": pyarrow.array(["5", "[5]"])})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert [row.fields["mixed"] for row in open_rows(tmp_path / "a.parquet") if isinstance(row, ReadRow)] == [
        "5",
        "[5]",
    ]


def test_a_marked_column_whose_text_is_no_json_makes_a_bad_row_and_the_rest_is_read(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", "parquet", [{"mixed": 5, "n": 1}, {"mixed": "five", "n": 2}, {"n": 3}])
    schema = pyarrow.parquet.read_schema(tmp_path / "a.parquet")
    assert [is_json_text(field) for field in schema] == [True, False]
    for text, why in (("{torn", "is not valid JSON: Expecting"), ('"\\ud800"', "holds half of a surrogate pair")):
        table = pyarrow.table({"mixed": ["5", text, None], "n": [1, 2, 3]}, schema=schema)
        pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
        first, second, third = open_rows(tmp_path / "b.parquet")
        assert isinstance(first, ReadRow)
        assert isinstance(second, BadRow)
        assert isinstance(third, ReadRow)
        assert (first.fields, third.fields) == ({"mixed": 5, "n": 1}, {"mixed": None, "n": 3})
        assert re.match(f"its column 'mixed' {re.escape(why)}", second.why)


def test_two_columns_of_one_name_of_which_one_is_marked_end_nothing(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", "parquet", [{"mixed": 5}, {"mixed": "five"}])
    marked = pyarrow.parquet.read_schema(tmp_path / "a.parquet").field("mixed")
    schema = pyarrow.schema([marked, pyarrow.field("mixed", pyarrow.int64())])
    table = pyarrow.Table.from_arrays([pyarrow.array(["5"]), pyarrow.array([7])], schema=schema)
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    [row] = open_rows(tmp_path / "b.parquet")
    assert isinstance(row, ReadRow)
    assert row.fields == {"mixed": 7}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hf"])
def test_the_columns_of_a_source_come_nested_out_of_the_rollouts_that_were_made_of_it(
    kind: Kind, tmp_path: Path
) -> None:
    extras = [{"index": 0}, [1, 2], "three", 4, {"deep": [{"x": None}, "y"]}, None]
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"{n}=", "extra": extra}) + "\n" for n, extra in enumerate(extras)))
    output = tmp_path / {"jsonl": "out.jsonl", "parquet": "out.parquet", "hf": "out"}[kind]
    collected(source, settings_for(output, kind=kind, num_samples=1))
    rows = [row for row in open_rows(output) if isinstance(row, ReadRow)]
    assert [row.fields["original_extra"] for row in rows] == extras
    # What a reward function sees is one JSON text, not the JSON text of a JSON text, by the name of the source.
    task = task_of(rows[4], "prompt")
    assert not isinstance(task, BadRow)
    assert json.loads(task.metadata["extra"]) == extras[4]
