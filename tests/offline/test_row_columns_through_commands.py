"""A column of mixed types goes through generating, scoring and filtering, and comes out as it went in."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollstream.cli.analyze_rewards import command as analyze_rewards
from rollstream.cli.filter_difficulty import command as filter_difficulty
from rollstream.rows.open import open_rows
from rollstream.rows.row import ReadRow
from tests.harness.collecting import collected, settings_for
from tests.harness.scoring import put_own_rewards

EXTRAS: list[Any] = [{"split": "train", "n": [1]}, {"split": 2}, {"split": "x", "n": {"deep": "5"}}, {"split": None}]
IDS: list[Any] = ["7", 7, 7.5, None]


def fields_of(path: Path) -> list[dict[str, Any]]:
    rows = list(open_rows(path))
    assert all(isinstance(row, ReadRow) for row in rows)
    return [row.fields for row in rows if isinstance(row, ReadRow)]


def run(command: Any, *words: str) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_values_of_foreign_rows_come_out_nested_after_each_command(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_rewards = put_own_rewards(tmp_path / "code", monkeypatch)
    source = tmp_path / "data.jsonl"
    rows = [
        {"prompt": f"{n}=", "ground_truth": "1", "extra_info": extra, "id": IDS[n]} for n, extra in enumerate(EXTRAS)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollouts = tmp_path / f"rollouts{suffix}"
    kind = "jsonl" if suffix == ".jsonl" else "parquet"
    collected(source, settings_for(rollouts, kind=kind, num_samples=2))
    verl = ["--rollouts", str(rollouts), "--reward_fn", "custom", f"{own_rewards}.as_verl", "--num_processes", "1"]
    run(analyze_rewards, *verl)
    # A second run reads what the first one wrote.
    run(analyze_rewards, *verl, "--name", "again")
    scored = tmp_path / f"rollouts_with_rewards{suffix}"
    run(
        filter_difficulty,
        "--data_path",
        str(scored),
        "--bucketing_strategy",
        "percentile",
        "--output_dir",
        str(tmp_path / "d"),
    )
    divided = [fields for file in (tmp_path / "d").glob(f"rollouts_*{suffix}") for fields in fields_of(file)]
    for found in (fields_of(rollouts), fields_of(scored), divided):
        assert len(found) == 8
        for fields in found:
            extra, wanted = fields["original_extra_info"], EXTRAS[fields["data_idx"]]
            assert {name: value for name, value in extra.items() if value is not None} == {
                name: value for name, value in wanted.items() if value is not None
            }
            assert fields["original_id"] == IDS[fields["data_idx"]]
    # The reward function had the nested values too: it fails without them.
    assert all(fields["reward"] is not None and fields["reward_again"] is not None for fields in fields_of(scored))
