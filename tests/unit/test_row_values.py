"""Values of rows are the same from each format, for rewards, problems and examples, and come out as they went in."""

import json
import re
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollstream.environments.rewards.registry import default_compute_score
from rollstream.offline.compare.examples import example_key
from rollstream.offline.difficulty.judged_row import RowJudge
from rollstream.offline.scores.columns import is_ours
from rollstream.offline.tasks import task_of
from rollstream.producers.sources.fields import row_from
from rollstream.rows.columns import is_json_text
from rollstream.rows.conversation import metadata_of, reference_of
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import Kind, write_rows
from rollstream.schemas.values import text_of
from tests.harness.late import Late

datasets = Late("datasets")
pandas = Late("pandas")

FORMATS: dict[str, Kind] = {"a.jsonl": "jsonl", "a.parquet": "parquet", "a": "hf"}
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


def written(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as they are read back, in the format of the name."""
    with write_rows(path, FORMATS[path.name]) as writer:
        for fields in rows:
            writer.write(fields)
    return fields_of(path)


def fields_of(path: Path) -> list[dict[str, Any]]:
    return [row.fields for row in open_rows(path) if isinstance(row, ReadRow)]


def without_nulls(value: Any) -> Any:
    """What a file of columns keeps of a value: an absent field and one that is null are the same there."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_any_rows_come_back_as_they_were(name: str, rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        found = written(Path(first) / name, rows)
        again = written(Path(second) / name, found)
    assert without_nulls(found) == without_nulls(again) == without_nulls(rows)


@pytest.mark.parametrize("name", ["a.parquet", "a"])
def test_a_column_whose_types_do_not_agree_is_json_text_for_other_programs(name: str, tmp_path: Path) -> None:
    rows = [{"mixed": 5}, {"mixed": "five"}, {"mixed": [5]}, {"mixed": None}, {"large": 2**70, "empty": {}}]
    assert without_nulls(written(tmp_path / name, rows)) == without_nulls(rows)
    path = str(tmp_path / name)
    shown = pandas.read_parquet(path)["mixed"] if name == "a.parquet" else datasets.load_from_disk(path)["mixed"][:]
    assert list(shown) == ["5", '"five"', "[5]", None, None]


def test_an_object_with_a_key_for_each_row_becomes_json_text_instead_of_thousands_of_columns(tmp_path: Path) -> None:
    found = written(tmp_path / "a.parquet", [{"by_name": {f"key {row}": row}} for row in range(1500)])
    assert found[1499]["by_name"] == {"key 1499": 1499}
    assert pyarrow.parquet.read_schema(tmp_path / "a.parquet").field("by_name").type == pyarrow.string()


@pytest.mark.parametrize("name", ["a.parquet", "a"])
@pytest.mark.parametrize("depth", [21, 99, 400, 900])
def test_a_column_that_is_nested_deeper_than_a_reader_takes_becomes_json_text(
    name: str, depth: int, tmp_path: Path
) -> None:
    deep = json.loads("[" * depth + "]" * depth)
    written(tmp_path / name, [{"n": 1, "deep": deep}, {"n": 2, "deep": [1]}])
    first, second = open_rows(tmp_path / name)
    if depth < 100:
        assert isinstance(first, ReadRow)
        assert first.fields == {"n": 1, "deep": deep}
    else:
        # As in a JSONL file, of which no row is that deep.
        assert isinstance(first, BadRow)
        assert first.why == "its column 'deep' is nested too deeply"
    assert isinstance(second, ReadRow)
    assert second.fields == {"n": 2, "deep": [1]}


def test_a_file_of_another_program_with_json_texts_keeps_them(tmp_path: Path) -> None:
    """Only the mark in the column's metadata tells, and nobody else sets it."""
    table = pyarrow.table({"mixed": pyarrow.array(["5", "[5]"])})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert [fields["mixed"] for fields in fields_of(tmp_path / "a.parquet")] == ["5", "[5]"]


def test_a_marked_column_whose_text_is_no_json_makes_a_bad_row_and_the_rest_is_read(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", [{"mixed": 5, "n": 1}, {"mixed": "five", "n": 2}, {"n": 3}])
    schema = pyarrow.parquet.read_schema(tmp_path / "a.parquet")
    assert [is_json_text(field) for field in schema] == [True, False]
    for text, why in (("{torn", "is not valid JSON: Expecting"), ('"\\ud800"', "holds half of a surrogate pair")):
        table = pyarrow.table({"mixed": ["5", text, None], "n": [1, 2, 3]}, schema=schema)
        pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
        _, bad, _ = open_rows(tmp_path / "b.parquet")
        assert isinstance(bad, BadRow)
        assert re.match(f"its column 'mixed' {re.escape(why)}", bad.why)
        assert fields_of(tmp_path / "b.parquet") == [{"mixed": 5, "n": 1}, {"mixed": None, "n": 3}]


def test_two_columns_of_one_name_of_which_one_is_marked_end_nothing(tmp_path: Path) -> None:
    written(tmp_path / "a.parquet", [{"mixed": 5}, {"mixed": "five"}])
    marked = pyarrow.parquet.read_schema(tmp_path / "a.parquet").field("mixed")
    schema = pyarrow.schema([marked, pyarrow.field("mixed", pyarrow.int64())])
    table = pyarrow.Table.from_arrays([pyarrow.array(["5"]), pyarrow.array([7])], schema=schema)
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    assert fields_of(tmp_path / "b.parquet") == [{"mixed": 7}]


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_number_beside_a_fraction_is_the_same_truth_from_each_format(name: str, tmp_path: Path) -> None:
    truths = [72, 0.5, None, 3]
    found = written(
        tmp_path / name,
        [
            {"original_reward_model": {"ground_truth": one}, "original_answer": one, "original_bounds": [one, 0.25]}
            for one in truths
        ],
    )
    assert [reference_of(fields) for fields in found] == ["72", "0.5", None, "3"]
    assert json.dumps([fields["original_answer"] for fields in found]) == json.dumps(truths)
    assert json.dumps([fields["original_bounds"] for fields in found]) == json.dumps([[one, 0.25] for one in truths])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([*[72] * 1500, *[0.5] * 1500], {"72", "0.5"}),  # the fraction comes thousands of rows later
        ([*[0.5] * 1500, *[72] * 1500], {"72", "0.5"}),
        ([1.0, 0.5], {"1.0", "0.5"}),  # floats alone stay floats
        # 2**60 + 1 is an integer of 64 bits, and no double: only the values tell, not the types.
        ([2**60 + 1, *[1] * 1000, 0.5], {str(2**60 + 1), "1", "0.5"}),
    ],
    ids=["whole first", "fraction first", "fractions", "no double"],
)
def test_a_number_is_whole_or_a_fraction_again_wherever_the_other_kind_comes(
    values: list[float], shown: set[str], tmp_path: Path
) -> None:
    found = written(tmp_path / "a.parquet", [{"n": value} for value in values])
    assert {repr(fields["n"]) for fields in found} == shown
    assert len(found) == len(values)


def test_numbers_that_are_not_finite_are_written_as_null_and_numpys_as_their_values(tmp_path: Path) -> None:
    rows = [{"reward": float("nan"), "values": np.array([1, 2]), "count": np.int64(3)}]
    assert written(tmp_path / "a.jsonl", rows) == [{"reward": None, "values": [1, 2], "count": 3}]


@pytest.mark.parametrize("number", ["1e999", "-1E+400", "9" * 400 + ".0"])
def test_a_number_beyond_all_floats_is_null_as_one_that_is_not_finite(number: str, tmp_path: Path) -> None:
    line = f'{{"reward": {number}, "turns": [{{"reward": {number}}}], "n": 1.5e300, "e": "1e999"}}'
    (tmp_path / "rows.jsonl").write_text(f"{line}\n")
    wanted = {"reward": None, "turns": [{"reward": None}], "n": 1.5e300, "e": "1e999"}
    assert fields_of(tmp_path / "rows.jsonl") == [wanted]


def test_a_file_that_pandas_widened_has_the_same_truths_problems_and_examples(tmp_path: Path) -> None:
    narrow = {"prompt": "a", "answer": 72, "example_id": 7, "data_idx": 3}
    frame = pandas.DataFrame([narrow, {"prompt": "b"}])
    frame.to_parquet(tmp_path / "a.parquet")
    first = fields_of(tmp_path / "a.parquet")[0]
    assert reference_of(first) == "72"
    assert metadata_of(first, is_ours)["answer"] == "72"
    task = task_of(ReadRow(0, "", first), "prompt")
    assert not isinstance(task, BadRow)
    assert (task.reference_answer, task.metadata["example_id"]) == ("72", "7")
    assert RowJudge().judged(first) == RowJudge().judged(narrow)
    assert RowJudge(id_column="example_id").problem(first) == RowJudge(id_column="example_id").problem(narrow)
    assert example_key(first, by_id=True) == example_key(narrow, by_id=True)
    prompt = row_from(ReadRow(0, "", {"prompt": "a", "id": 7.0, "answer": 72.0}), dataset="d")
    assert (prompt.prompt_id, prompt.reference_answer) == ("d/7", "72")
    assert default_compute_score("openai/gsm8k", "#### 72", np.float64(72))["score"] == 1.0


def test_values_of_other_programs_parquet_are_plain(tmp_path: Path) -> None:
    columns = {
        "turns": [np.array([{"role": "user"}], dtype=object)],
        "when": [pandas.Timestamp("2026-03-01T12:00:00Z")],
        "score": [float("nan")],
        "raw": [b"caf\xc3\xa9"],
        "reward": [Decimal("0.50")],
    }
    pandas.DataFrame(columns).to_parquet(tmp_path / "a.parquet")
    [fields] = fields_of(tmp_path / "a.parquet")
    when = "2026-03-01T12:00:00+00:00"
    assert fields == {"turns": [{"role": "user"}], "when": when, "score": None, "raw": "café", "reward": 0.5}
    assert type(fields["turns"]) is list


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("72.0", "72.0"),
        (72.0, "72"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (1e300, "1e+300"),
        (True, "true"),
        ([72.0, {"é": 0.5}], '[72, {"é": 0.5}]'),
        (np.float64(72), "72"),
        (np.array([72.0, 1.5]), "[72, 1.5]"),
        (Decimal("72.00"), "72"),
        ({"n": Decimal("0.25")}, '{"n": 0.25}'),
    ],
)
def test_a_value_is_the_same_text_whatever_library_gave_it(value: Any, text: str) -> None:
    assert text_of(value) == text
