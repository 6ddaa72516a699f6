"""The choices of --reward_fn: what each is judged by, and which are refused with what to change."""

from pathlib import Path
from typing import Any

import pytest

from rollstream.offline.options import ScoresOptions
from rollstream.offline.scores.functions import Judging, judging_of, reward_function
from rollstream.offline.scores.request import output_beside, scores_request
from rollstream.schemas.errors import ConfigurationError, RewardError


@pytest.mark.parametrize(
    ("source", "reward", "normalized", "passes"),
    [
        ("openai/gsm8k", 0.0, 0.0, False),
        ("openai/gsm8k", 1.0, 1.0, True),
        ("math_dapo", -1.0, 0.0, False),
        ("math_dapo", 0.0, 0.5, False),
        ("math_dapo", 1.0, 1.0, True),
        ("aime2025", -1.0, 0.0, False),
        ("hiyouga/geometry3k", 0.9, 0.9, True),
    ],
)
def test_each_source_says_its_range_and_what_passes(
    source: str, reward: float, normalized: float, passes: bool
) -> None:
    judging = judging_of(source)
    assert judging is not None
    assert (judging.normalized(reward), judging.passes(reward)) == (normalized, passes)


def test_a_function_is_judged_by_the_data_source_only_where_it_is_chosen_by_it() -> None:
    assert reward_function("math").judging("math_dapo") == Judging(0.0, 1.0, 1.0)
    assert reward_function("custom", path="my.reward").judging("openai/gsm8k") is None
    for source, why in (("mine", "unknown_source: .* 'mine'"), ("", "no_source: .* original_data_source")):
        with pytest.raises(RewardError, match=why):
            reward_function("auto").judging(source)


@pytest.mark.parametrize(
    ("choice", "options", "why"),
    [
        ("custom", {}, r"needs the path of your function: --reward_fn custom package\.module\.function"),
        ("math", {"path": "my.reward"}, "takes no path of a function, got 'my.reward'"),
        ("custom", {"path": "reward"}, r"'reward' is no path of a function: write package\.module\.function"),
        ("custom", {"path": "my/reward.py"}, "is no path of a function"),
        ("math", {"name": "failure"}, "take letters, digits and _, and none of normalized, failure, model"),
        ("math", {"name": "a b"}, "take letters, digits and _"),
    ],
)
def test_a_choice_that_makes_no_sense_says_what_to_change(choice: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        reward_function(choice, **options)


def test_the_output_lies_beside_the_rollouts_and_never_replaces_them(tmp_path: Path) -> None:
    assert output_beside(tmp_path / "rollouts.parquet") == tmp_path / "rollouts_with_rewards.parquet"
    assert output_beside(tmp_path / "rollouts.jsonl") == tmp_path / "rollouts_with_rewards.jsonl"
    scored = tmp_path / "rollouts_with_rewards.parquet"
    with pytest.raises(ConfigurationError, match="would be replaced by its own scores"):
        scores_request(ScoresOptions(rollouts=scored))
    with pytest.raises(ConfigurationError, match=r"the name must end in \.parquet or \.jsonl"):
        scores_request(ScoresOptions(rollouts=scored, output=tmp_path / "out.csv"))
