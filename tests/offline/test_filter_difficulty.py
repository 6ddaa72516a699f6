"""`filter-difficulty` as a command, after `analyze-rewards`."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from rollstream.cli.analyze_rewards import command as analyze_rewards
from rollstream.cli.filter_difficulty import command as filter_difficulty

STRATEGIES = ["percentile", "pass_rate", "mean_reward", "adaptive"]


def asked(folder: Path) -> Path:
    """Five problems of four samples, solved 0, 1, 2, 3 and 4 times, by two data sources in turn; and one not asked."""
    rows: list[dict[str, Any]] = []
    for problem in range(6):
        is_dapo = problem % 2 == 1
        for sample in range(4):
            right = "Answer: 7" if is_dapo else "#### 7"
            wrong = "Answer: 8" if is_dapo else "#### 8"
            row = {
                "prompt": [{"role": "user", "content": f"problem {problem}"}],
                "response": right if sample < problem else wrong, "sample_idx": sample, "data_idx": problem,
                "original_data_source": "math_dapo" if is_dapo else "openai/gsm8k",
                "original_reward_model": {"style": "rule", "ground_truth": "7"},
            }  # fmt: skip
            rows.append(row | {"response": None, "failure": "deadline: late"} if problem == 5 else row)
    path = folder / "rollouts.parquet"
    pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """They, after `analyze-rewards`."""
    folder = tmp_path_factory.mktemp("scored")
    result = CliRunner().invoke(analyze_rewards, ["--rollouts", str(asked(folder)), "--num_processes", "1"])
    assert result.exit_code == 0, result.output
    return folder / "rollouts_with_rewards.parquet"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_documents_last_command_divides_what_its_second_one_scored(
    strategy: str, scored: Path, tmp_path: Path
) -> None:
    words = ["--data_path", str(scored), "--bucketing_strategy", strategy, "--output_dir", str(tmp_path)]
    result = CliRunner().invoke(filter_difficulty, words)
    assert result.exit_code == 0, result.output
    metrics = pd.read_parquet(tmp_path / f"difficulty_metrics_{strategy}.parquet").sort_values("data_idx")
    assert metrics["pass_rate"].tolist()[:5] == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert metrics["mean_reward"].tolist()[:5] == [0.0, -0.5, 0.5, 0.5, 1.0]
    assert metrics["mean_normalized"].tolist()[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    # Scores 1 - mean + 0.3 std: 1, 0.88, 0.65, 0.38, 0.
    assert (
        metrics["difficulty_bucket"].tolist()
        == {
            "percentile": ["very_hard", "hard", "medium", "medium", "easy", "unknown"],
            "pass_rate": ["very_hard", "hard", "medium", "medium", "easy", "unknown"],
            "mean_reward": ["very_hard", "hard", "medium", "easy", "easy", "unknown"],
            "adaptive": ["very_hard", "very_hard", "hard", "medium", "easy", "unknown"],
        }[strategy]
    )
    assert "4 x not_completed, e.g. rollouts_with_rewards.parquet row 20" in result.output
    summary = json.loads((tmp_path / f"summary_{strategy}.json").read_text())
    assert summary["unscored_rows"]["not_completed"]["count"] == 4
    assert sum(len(pd.read_parquet(file)) for file in tmp_path.glob(f"rollouts_*_{strategy}.parquet")) == 24


def test_thresholds_and_json_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    rows = [{"prompt": f"p{n % 3}", "reward": n % 3 / 2} for n in range(9)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = [
        "--data_path",
        str(path),
        "--bucketing_strategy",
        "pass_rate",
        "--json",
        "--output_dir",
        str(tmp_path / "o"),
    ]
    result = CliRunner().invoke(filter_difficulty, [*words, "--pass_threshold", "0.5"])
    assert json.loads(result.stdout)["bucket_distribution"] == {
        "easy": 2, "medium": 0, "hard": 0, "very_hard": 1, "unknown": 0
    }  # fmt: skip
    result = CliRunner().invoke(
        filter_difficulty, [*words, "--pass_threshold", "0.5", "--pass_rate_thresholds", "1", "2", "3"]
    )
    assert result.exit_code == 2
    assert "'--pass_rate_thresholds': expected three different numbers from 0 to 100, descending" in result.output
