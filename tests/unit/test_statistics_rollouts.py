"""The statistics block of source document 000 (W7): numpy's numbers for the column, and one example."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from rollstream.offline.statistics import RewardStatistics, example_lines, shown_text, summarized
from rollstream.rows.open import open_rows

REACHABLE = [1.3, 0.3, 0.25, 0.22, 0.2, 0.0]


def a_file(path: Path, rewards: list[float | None]) -> Path:
    path.write_text(
        "".join(json.dumps({"prompt": f"row {row}", "reward": one}) + "\n" for row, one in enumerate(rewards))
    )
    return path


def test_the_block_equals_numpy_on_the_file(tmp_path: Path) -> None:
    chooser = random.Random(7)
    rewards = [chooser.choice(REACHABLE) for _ in range(5000)]
    found = summarized(open_rows(a_file(tmp_path / "rollouts.jsonl", [*rewards, None]))).rewards
    assert found.mean == pytest.approx(np.mean(rewards), rel=1e-12)
    assert found.std == pytest.approx(np.std(rewards), rel=1e-12)
    assert (found.lowest, found.highest, found.num, found.num_without) == (0.0, 1.3, 5000, 1)


def test_the_block_says_that_the_standard_deviation_is_the_populations() -> None:
    found = RewardStatistics()
    for reward in (1.3, 0.25, 1.302, 0.0):
        found.add(reward)
    # The mean is 0.713. The squares of the differences add up to 1.414228: the population's is sqrt(0.353557).
    assert found.lines() == [
        "   Reward mean: 0.713",
        "   Reward std: 0.595 (population)",
        "   Min: 0.000",
        "   Max: 1.302",
    ]


def test_large_rewards_that_differ_little_keep_their_standard_deviation() -> None:
    found = RewardStatistics()
    for reward in (1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16):
        found.add(reward)
    assert found.std == pytest.approx(math.sqrt(22.5), rel=1e-9)


@pytest.mark.parametrize(
    "reward", [None, "1.3", True, math.nan, math.inf, [1.0], 10**400, -(10**400), 1e200], ids=lambda one: str(one)[:9]
)
def test_what_is_no_finite_number_is_no_reward(reward: object) -> None:
    found = RewardStatistics()
    found.add(reward)
    assert (found.num, found.num_without) == (0, 1)
    assert found.lines() == ["   No row has a reward (1 rows)"]


def test_the_example_is_the_first_row_with_a_reward_and_the_lowest_the_first_of_the_least(tmp_path: Path) -> None:
    summary = summarized(open_rows(a_file(tmp_path / "rollouts.jsonl", [None, 0.3, 1.3, 0.2, 0.2])))
    assert summary.example is not None
    assert summary.lowest is not None
    assert (summary.example["prompt"], summary.lowest["prompt"]) == ("row 1", "row 3")


def test_a_bad_line_counts_as_a_row_without_a_reward(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"reward": 1.3}\n{"reward":\n')
    assert summarized(open_rows(path)).rewards.num_without == 1


def test_an_example_is_shown_on_single_lines_without_control_characters() -> None:
    row = {
        "prompt": [
            {"role": "system", "content": "Count."},
            {"role": "user", "content": "Count the number of words in the following text:\n\n" + "word " * 45},
        ],
        "completion": [{"role": "assistant", "content": "<word_count>\n45\n</word_count>\x1b[31m"}],
        "reward": 1.3,
    }
    assert example_lines(row) == [
        "   Prompt: Count the number of words in the following text: word word word word wor...",
        "   Completion: <word_count> 45 </word_count>\\x1b[31m",
        "   Reward: 1.30",
    ]


def test_a_text_prompt_and_a_response_are_shown_too() -> None:
    assert shown_text("one\ntwo") == "one two"
    assert example_lines({"prompt": "2+2=", "response": "4", "reward": 1})[1] == "   Completion: 4"
