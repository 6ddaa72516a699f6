"""Advantages by hand: what a group makes of its rewards, and what a step's whole batch makes of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.errors import RewardError
from rollstream.training.learning.advantages import batch_advantages, group_advantages, with_advantages
from rollstream.training.learning.settings import AdvantageSettings, LearningSettings
from tests.harness.learners import a_sample

MEAN = AdvantageSettings()
SCALED = AdvantageSettings(scale_advantages="group")
RLOO = AdvantageSettings(advantages="rloo")
PLUS_PLUS = AdvantageSettings(advantages="reinforce_plus_plus")
CONSTANT = AdvantageSettings(advantages="constant", baseline=0.25)


@pytest.mark.parametrize(
    ("settings", "rewards", "expected"),
    [
        (MEAN, [1.0, 0.0, 0.0, 0.0], [0.75, -0.25, -0.25, -0.25]),
        (MEAN, [1.0, 0.0], [0.5, -0.5]),
        (MEAN, [-2.0, 1.0, 4.0], [-3.0, 0.0, 3.0]),
        (MEAN, [0.3], [0.0]),
        (MEAN, [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
        # Deviations -3, 0, 3: variance 18 / 2 = 9, standard deviation 3.
        (SCALED, [-2.0, 1.0, 4.0], [-3 / 3.0001, 0.0, 3 / 3.0001]),
        (SCALED, [0.3], [0.0]),
        (SCALED, [1.0, 1.0], [0.0, 0.0]),
        # The mean of the others: 0 for the first, 1 / 3 for each of the rest.
        (RLOO, [1.0, 0.0, 0.0, 0.0], [1.0, -1 / 3, -1 / 3, -1 / 3]),
        (RLOO, [-2.0, 1.0, 4.0], [-4.5, 0.0, 4.5]),
        (RLOO, [0.3], [0.0]),
        (PLUS_PLUS, [1.0, 0.0], [0.5, -0.5]),
        (CONSTANT, [1.0, 1.0], [0.75, 0.75]),
        (CONSTANT, [0.25], [0.0]),
    ],
)
def test_a_group_compares_each_reward_as_its_settings_say(settings, rewards, expected):
    np.testing.assert_allclose(group_advantages(rewards, settings), expected, atol=1e-12)


@pytest.mark.parametrize("settings", [MEAN, CONSTANT])
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_is_refused(reward, settings):
    with pytest.raises(ValueError, match="must be finite"):
        group_advantages([1.0, reward], settings)
    with pytest.raises(ValueError, match="at least one"):
        group_advantages([], settings)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=16), st.sampled_from([MEAN, SCALED, RLOO, PLUS_PLUS]))
def test_the_advantages_of_a_group_cancel_out(rewards, settings):
    assert abs(group_advantages(rewards, settings).sum()) < 1e-6


@pytest.mark.parametrize("settings", [MEAN, SCALED, RLOO])
@pytest.mark.parametrize("rewards", [[0.7], [1.0, 1.0], [0.1] * 7, [1e9 / 3] * 7, [0.2, 0.3, 0.4], [0.1, 0.2, 0.3]])
def test_a_reward_that_is_the_mean_has_an_advantage_of_exactly_0(rewards, settings):
    advantages = group_advantages(rewards, settings)
    assert advantages[len(rewards) // 2] == 0


def test_a_small_difference_of_rewards_is_an_advantage():
    assert group_advantages([0.0, 0.0, 1e-9], MEAN).all()
    assert group_advantages([1.0, 1.0, 1.0 + 1e-9], MEAN).all()


GROUPS = ["a", "b", "a", "b"]
REWARDS = [3.0, 1.0, 1.0, 1.0]
"""Group a: 3 and 1, group b is flat. All rewards: mean 1.5, standard deviation sqrt(3 / 3) = 1."""


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (MEAN, [1.0, 0.0, -1.0, 0.0]),
        (SCALED, [1 / (math.sqrt(2) + 1e-4), 0.0, -1 / (math.sqrt(2) + 1e-4), 0.0]),
        (AdvantageSettings(scale_advantages="batch"), [1 / 1.0001, 0.0, -1 / 1.0001, 0.0]),
        (RLOO, [2.0, 0.0, -2.0, 0.0]),
        # The advantages 1, 0, -1, 0 have the standard deviation sqrt(2 / 3).
        (PLUS_PLUS, [1 / (math.sqrt(2 / 3) + 1e-4), 0.0, -1 / (math.sqrt(2 / 3) + 1e-4), 0.0]),
        (CONSTANT, [2.75, 0.75, 0.75, 0.75]),
    ],
)
def test_a_batch_compares_within_groups_and_divides_as_its_settings_say(settings, expected):
    np.testing.assert_allclose(batch_advantages(REWARDS, GROUPS, settings), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Ones of chat have 1, -1, 1: the means of the others are 0, 1, 0. Those of code 0.5, 0. That of math is alone.
        (MEAN, [1.0, -2.0, 1.0, 0.5, -0.5, 0.0, 1.0, -1.0]),
        (RLOO, [1.0, -2.0, 1.0, 0.5, -0.5, 0.0, 2.0, -2.0]),
        (CONSTANT, [0.75, -1.25, 0.75, 0.25, -0.25, 6.75, 2.75, 0.75]),
        # The standard deviation of 1, -1, 1 is sqrt(8 / 3 / 2), that of 0.5 and 0 is sqrt(1 / 8).
        (
            SCALED,
            [
                *(value / (math.sqrt(4 / 3) + 1e-4) for value in (1.0, -2.0, 1.0)),
                *(value / (math.sqrt(1 / 8) + 1e-4) for value in (0.5, -0.5)),
                0.0,
                *(value / (math.sqrt(2) + 1e-4) for value in (1.0, -1.0)),
            ],
        ),
    ],
)
def test_a_group_of_one_is_compared_with_the_others_of_its_environment_in_the_batch(settings, expected):
    ones = ["chat", "chat", "chat", "code", "code", "math", None, None]
    rewards = [1.0, -1.0, 1.0, 0.5, 0.0, 7.0, 3.0, 1.0]
    # A group may have the name of an environment.
    groups = ["a", "b", "c", "d", "e", "f", "chat", "chat"]
    np.testing.assert_allclose(batch_advantages(rewards, groups, settings, ones), expected, atol=1e-12)
    samples = [
        a_sample(place, group_id=group, compared_in=one, reward=reward)
        for place, (group, one, reward) in enumerate(zip(groups, ones, rewards, strict=True))
    ]
    of_settings = LearningSettings(**settings.model_dump())
    found = [sample.advantage for sample in with_advantages(samples, of_settings)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("settings", [MEAN, RLOO])
def test_what_a_group_of_one_is_compared_with_does_not_depend_on_its_own_reward(settings):
    for reward in (-3.0, 0.0, 5.0):
        found = batch_advantages([reward, 1.0, 0.5], ["a", "b", "c"], settings, ["chat"] * 3)
        assert found[0] == pytest.approx(reward - 0.75, abs=1e-12)


@pytest.mark.parametrize("settings", [AdvantageSettings(scale_advantages="batch"), PLUS_PLUS])
def test_a_batch_without_any_spread_has_advantages_of_exactly_0(settings):
    assert not batch_advantages([1.0, 1.0, 0.1, 0.1, 0.1], ["a", "a", "b", "b", "b"], settings).any()
    assert batch_advantages([0.7], ["a"], settings).tolist() == [0.0]


def test_a_rollout_counts_once_however_many_samples_it_became():
    whole = [a_sample(0, reward=1.0), a_sample(1, reward=0.0), a_sample(2, reward=0.0)]
    split = [whole[0], *(a_sample(index, rollout_id="rollout-1", reward=0.0) for index in range(3, 6)), whole[2]]
    for settings in (LearningSettings(), LearningSettings(scale_advantages="batch")):
        alone = [sample.advantage for sample in with_advantages(whole, settings)]
        found = [sample.advantage for sample in with_advantages(split, settings)]
        assert found == [alone[0], *[alone[1]] * 3, alone[2]]


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_a_sample_without_a_usable_reward_is_named_before_training(reward):
    with pytest.raises(RewardError, match=f"rollout-1 has reward {reward}"):
        with_advantages([a_sample(0), a_sample(1, reward=reward)], LearningSettings())
