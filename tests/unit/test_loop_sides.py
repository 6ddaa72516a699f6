"""What `bench loop` reads of both sides: speed, and beside it what was learned meanwhile."""

import pytest

from tests.bench.loop import _figures
from tests.bench.loop_sides import WARM_UP_STEPS, _read_theirs


def test_the_rewards_of_trl_are_those_of_the_measured_steps() -> None:
    num_steps = WARM_UP_STEPS + 8
    steps = [{"ended": 2.0 * step, "cpu_seconds": 3.0 * step, "trained_tokens": 10} for step in range(num_steps)]
    measured = _read_theirs({"steps": steps, "rewards": [9.0] * WARM_UP_STEPS + [0.0, 0.5, 0, 0, 0, 0, 0.5, 1.0]})
    assert measured.steps_per_minute == pytest.approx(30)
    assert measured.quarters == (0.25, 0.75)
    found = _figures([measured])
    assert found["reward_of_first_and_last_quarter"] == [[0.25, 0.75]]
    assert found["policy_lag_mean"] == [0.0]
