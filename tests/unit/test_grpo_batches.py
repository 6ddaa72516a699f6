"""What a backend is given of a batch of rollouts: advantages, and what the samples say."""

import math

import pytest

from rollstream.schemas.errors import RewardError
from rollstream.training.learning.settings import AdvantageSettings
from rollstream.training.types import RolloutBatch
from tests.harness.late import Late

rl_loop = Late("rollstream.training.loops.rl_loop")


def test_advantages_are_rewards_without_a_baseline_and_a_reward_that_is_none_is_refused():
    assert rl_loop.compute_advantages([1.0, 0.0, 0.5], baseline=0.5) == [0.5, -0.5, 0.0]
    for reward in (None, math.nan, math.inf, "1"):
        with pytest.raises(RewardError, match="reward 1"):
            rl_loop.compute_advantages([0.0, reward])


def a_batch(rewards, groups=None, **fields):
    rows = len(rewards)
    return RolloutBatch(
        tokens=[[1, 2, 3]] * rows,
        loss_masks=[[0.0, 1.0, 1.0]] * rows,
        rewards=rewards,
        response_lengths=[2] * rows,
        group_indices=groups,
        **fields,
    )


@pytest.mark.parametrize(
    ("rewards", "groups", "baseline", "settings", "expected"),
    [
        ([1.0, 0.0, 0.5, 0.5], [7, 7, 9, 9], 0.25, {}, [0.5, -0.5, 0.0, 0.0]),
        ([1.0, 0.0, 0.5], [7, 7, 9], 0.0, {}, [0.5, -0.5, 0.0]),
        ([1.0, 0.0], [7, 9], 0.25, {}, [0.75, -0.25]),
        ([1.0, 0.0], None, 0.25, {}, [0.75, -0.25]),
        ([1.0, 0.0, 0.0], [7, 7, 7], 0.0, {"advantages": "rloo"}, [1.0, -0.5, -0.5]),
    ],
)
def test_a_batch_for_grpo_compares_within_groups_or_with_the_baseline(rewards, groups, baseline, settings, expected):
    prepared = rl_loop.prepare_grpo_batch(a_batch(rewards, groups), baseline, AdvantageSettings(**settings))
    assert prepared["advantages"].tolist() == pytest.approx(expected)
    assert prepared["tokens"][0].tolist() == [1, 2]
    assert prepared["labels"][0].tolist() == [2, 3]
    assert prepared["loss_mask"][0].tolist() == [1, 1]
    assert "rollout_log_probs" not in prepared


def test_the_engines_logprobs_come_along():
    prepared = rl_loop.prepare_grpo_batch(a_batch([1.0], rollout_log_probs=[[0.0, -1.0, -2.0]]))
    assert prepared["rollout_log_probs"].tolist() == [[-1.0, -2.0]]


def test_temperature_and_token_limit_come_along_where_all_samples_say_them():
    tags = [{"temperature": 0.7, "max_tokens": 5}, {"temperature": 1.0}]
    prepared = rl_loop.prepare_grpo_batch(a_batch([1.0, 0.0], metadata={"sample_metadata": tags}))
    assert prepared["temperatures"].tolist() == pytest.approx([0.7, 1.0])
    assert "max_tokens" not in prepared
