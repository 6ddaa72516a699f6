"""At its start the trainer warns if max_policy_lag is too low for the run's longest rollouts."""

from rollstream.trainer.intake.admission import narrow_lag_bound
from rollstream.trainer.since_step import SampleSums
from tests.harness.builders import a_rollout


def steps_that_took(rollout_seconds: float, step_seconds: float) -> list[dict[str, float]]:
    metrics = {"rollout_seconds_p99": rollout_seconds, "step_seconds": step_seconds}
    # One step after a pause must not decide.
    pause = {"rollout_seconds_p99": rollout_seconds, "step_seconds": 3600.0}
    return [metrics, metrics, pause]


def test_rollouts_of_five_steps_need_a_lag_bound_of_five() -> None:
    steps = steps_that_took(rollout_seconds=10.0, step_seconds=2.0)
    assert narrow_lag_bound(steps, 5) is None
    said = narrow_lag_bound(steps, 4)
    assert said is not None
    assert "max_policy_lag 4 is below 5.0" in said


def test_a_run_without_steps_says_nothing() -> None:
    assert narrow_lag_bound([], 0) is None
    assert narrow_lag_bound([{}], 0) is None


def test_a_step_reports_how_long_its_rollouts_took() -> None:
    sums = SampleSums()
    sums.add([a_rollout(), a_rollout(sample_index=1)])
    assert sums.metrics()["rollout_seconds_p99"] == 1.0
