"""Group-relative advantages against numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.trainer.learning.advantages import group_advantages


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], [0.75, -0.25, -0.25, -0.25]),
        ([1.0, 0.0], [0.5, -0.5]),
        ([-2.0, 1.0, 4.0], [-3.0, 0.0, 3.0]),
        ([0.3], [0.0]),
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]),
    ],
)
def test_an_advantage_is_the_reward_minus_the_mean_of_its_group(rewards, expected):
    np.testing.assert_allclose(group_advantages(rewards, scale_by_std=False), expected, atol=1e-12)


def test_scaling_divides_by_the_sample_standard_deviation():
    # Deviations -3, 0, 3: variance 18 / 2 = 9, standard deviation 3.
    np.testing.assert_allclose(group_advantages([-2.0, 1.0, 4.0], scale_by_std=True), [-1.0, 0.0, 1.0], atol=1e-4)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(ValueError, match="must be finite"):
        group_advantages([1.0, reward], scale_by_std=False)
    with pytest.raises(ValueError, match="at least one"):
        group_advantages([], scale_by_std=False)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=16), st.booleans())
def test_the_advantages_of_a_group_cancel_out(rewards, scale_by_std):
    assert abs(group_advantages(rewards, scale_by_std=scale_by_std).sum()) < 1e-6


@pytest.mark.parametrize("scale_by_std", [False, True])
@pytest.mark.parametrize("rewards", [[0.7], [1.0, 1.0], [0.1] * 7, [1e9 / 3] * 7, [0.2, 0.3, 0.4], [0.1, 0.2, 0.3]])
def test_a_reward_that_is_the_mean_has_an_advantage_of_exactly_0(rewards, scale_by_std):
    advantages = group_advantages(rewards, scale_by_std=scale_by_std)
    assert advantages[len(rewards) // 2] == 0


def test_a_small_difference_of_rewards_is_an_advantage():
    assert group_advantages([0.0, 0.0, 1e-9], scale_by_std=False).all()
    assert group_advantages([1.0, 1.0, 1.0 + 1e-9], scale_by_std=False).all()
