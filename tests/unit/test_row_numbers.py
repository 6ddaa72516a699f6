"""Whole numbers, fractions and decimals are the same from each format, for rewards, problems and examples."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from rollstream.environments.rewards.registry import default_compute_score
from rollstream.offline.compare.examples import example_key
from rollstream.offline.difficulty.judged_row import RowJudge
from rollstream.offline.scores.columns import is_ours
from rollstream.offline.tasks import task_of
from rollstream.producers.sources.fields import row_from
from rollstream.rows.conversation import metadata_of, reference_of
from rollstream.rows.open import open_rows
from rollstream.rows.row import BadRow, ReadRow
from rollstream.rows.write import Kind, write_rows
from rollstream.schemas.values import text_of

TRUTHS = [72, 0.5, None, 3]
TEXTS = ["72", "0.5", None, "3"]


def fields_of(path: Path) -> list[dict[str, Any]]:
    return [row.fields for row in open_rows(path) if isinstance(row, ReadRow)]


def rollouts(truths: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": "How many?",
            "response": f"#### {truth}",
            "original_data_source": "openai/gsm8k",
            "original_reward_model": {"style": "rule", "ground_truth": truth},
            "original_answer": truth,
            "original_bounds": [truth, 0.25],
        }
        for truth in truths
    ]


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "jsonl"), ("a.parquet", "parquet"), ("a", "hf")])
def test_a_whole_number_beside_a_fraction_is_the_same_truth_from_each_format(
    tmp_path: Path, name: str, kind: Kind
) -> None:
    rows = rollouts(TRUTHS)
    with write_rows(tmp_path / name, kind) as writer:
        for fields in rows:
            writer.write(fields)
    found = fields_of(tmp_path / name)
    assert [reference_of(fields) for fields in found] == TEXTS
    assert json.dumps([fields["original_answer"] for fields in found]) == json.dumps(TRUTHS)
    assert json.dumps([fields["original_bounds"] for fields in found]) == json.dumps([[one, 0.25] for one in TRUTHS])


@pytest.mark.parametrize("batch_of_whole", [0, 1])
def test_a_number_is_whole_again_also_where_the_fraction_comes_thousands_of_rows_later(
    tmp_path: Path, batch_of_whole: int
) -> None:
    halves = [[{"n": 72}] * 1500, [{"n": 0.5}] * 1500]
    with write_rows(tmp_path / "a.parquet", "parquet") as writer:
        for fields in [*halves[batch_of_whole - 1], *halves[batch_of_whole]]:
            writer.write(fields)
    assert {repr(fields["n"]) for fields in fields_of(tmp_path / "a.parquet")} == {"72", "0.5"}


def test_floats_alone_stay_floats(tmp_path: Path) -> None:
    with write_rows(tmp_path / "a.parquet", "parquet") as writer:
        for reward in (1.0, 0.5):
            writer.write({"reward": reward})
    assert [repr(fields["reward"]) for fields in fields_of(tmp_path / "a.parquet")] == ["1.0", "0.5"]
    assert pandas.read_parquet(tmp_path / "a.parquet")["reward"].mean() == 0.75


def test_a_file_that_pandas_widened_has_the_same_truths_problems_and_examples(tmp_path: Path) -> None:
    pandas.DataFrame(
        {"prompt": ["a", "b"], "answer": [72, None], "example_id": [7, None], "data_idx": [3, None]}
    ).to_parquet(tmp_path / "a.parquet")
    first = fields_of(tmp_path / "a.parquet")[0]
    narrow = {"prompt": "a", "answer": 72, "example_id": 7, "data_idx": 3}
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


def test_decimal_numbers_of_parquet_are_numbers(tmp_path: Path) -> None:
    rewards = pyarrow.array([Decimal("1.00"), Decimal("0.50"), None])
    pyarrow.parquet.write_table(pyarrow.table({"reward": rewards}), tmp_path / "a.parquet")
    assert [fields["reward"] for fields in fields_of(tmp_path / "a.parquet")] == [1, 0.5, None]


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


def test_the_documents_snippet_scores_a_column_that_pandas_widened() -> None:
    assert default_compute_score("openai/gsm8k", "#### 72", np.float64(72))["score"] == 1.0
