"""Lines of JSONL that Python's own library reads into something that breaks what comes after it."""

from pathlib import Path

import pytest

from rollstream.rows.jsonl import JsonlRows
from rollstream.rows.row import BadRow, ReadRow


def rows_of(folder: Path, *lines: str) -> list[ReadRow | BadRow]:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return list(JsonlRows(path))


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 400 + ".0"])
def test_a_number_beyond_all_floats_is_null_as_one_that_is_not_finite(number: str, tmp_path: Path) -> None:
    [row] = rows_of(tmp_path, f'{{"reward": {number}, "turns": [{{"reward": {number}}}], "n": 1.5e300, "e": "1e999"}}')
    assert isinstance(row, ReadRow)
    assert row.fields == {"reward": None, "turns": [{"reward": None}], "n": 1.5e300, "e": "1e999"}


def test_a_row_that_is_nested_too_deeply_is_a_bad_one_and_a_wide_one_is_not(tmp_path: Path) -> None:
    deepest, deeper, objects = ("[" * 99 + "]" * 99, "[" * 100 + "]" * 100, '{"a": ' * 100 + "1" + "}" * 100)
    wide = ", ".join(["[[{}]]"] * 500)
    lines = [f'{{"prompt": {value}}}' for value in (deepest, deeper, objects, f"[{wide}]")]
    rows = rows_of(tmp_path, *lines)
    assert [row.why if isinstance(row, BadRow) else None for row in rows] == [
        None, "its JSON is nested too deeply", "its JSON is nested too deeply", None
    ]  # fmt: skip
