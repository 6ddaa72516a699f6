"""The columns of a parquet file that is written from rows: how many there may be."""

from pathlib import Path

import pytest

from rollstream.rows.columns import MAX_COLUMNS, Columns
from rollstream.rows.write import rewrite_rows
from rollstream.schemas.errors import ConfigurationError


def test_as_many_columns_as_the_bound_are_taken() -> None:
    columns = Columns()
    columns.see([{f"column {number}": number for number in range(MAX_COLUMNS)}])
    assert len(columns.schema) == MAX_COLUMNS


def test_rows_that_each_have_columns_of_their_own_are_refused_and_the_former_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("former")
    rows = [{f"row 0, column {number}": number for number in range(MAX_COLUMNS)}, {"row 1, column 0": 1}]
    with pytest.raises(ConfigurationError, match="more than 10000 different columns, 'row 1, column 0' is one of them"):
        rewrite_rows(path, "parquet", lambda: rows)
    assert path.read_text() == "former"
    assert [found.name for found in tmp_path.iterdir()] == ["rows.parquet"]
