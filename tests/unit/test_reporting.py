"""What a ledger entry reports of the groups that it closes."""

import pytest

from rollstream.trainer.reporting import group_metrics, rollout_metrics
from tests.harness.builders import a_rollout


def test_rollout_metrics_leave_out_samples_without_a_reward():
    scored = [a_rollout(reward=1.0), a_rollout(reward=0.0)]
    metrics = rollout_metrics(scored)
    assert metrics["reward_mean"] == 0.5
    assert metrics["completion_tokens_mean"] == 6.0
    assert rollout_metrics([]) == {}


def test_group_metrics_count_by_reason():
    assert group_metrics(4, {}, num_flat=1)["zero_std_ratio"] == pytest.approx(1 / 4)
    metrics = group_metrics(3, {"no_spread": 2, "too_old": 1})
    assert metrics["groups_dropped"] == 3.0
    assert metrics["dropped_ratio"] == 0.5
    assert metrics["zero_std_ratio"] == pytest.approx(1 / 3)
    assert metrics["groups_dropped/too_old"] == 1.0
