"""The figures of an evaluation: only of prompts of which every sample completed; the others are counted, never as 0."""

import pytest

from rollstream.client.evaluation import (
    EvaluatedPrompt,
    EvaluatedSample,
    EvaluationReport,
    EvaluationRequest,
    report_of,
)
from rollstream.client.metrics import exported_ks
from rollstream.environments.pass_rates import mean_interval
from rollstream.schemas.failure import FailureCode
from rollstream.schemas.rollout import Status
from tests.harness.builders import a_failure, a_prompt

FAILED = EvaluatedSample(status=Status.FAILED, failure=a_failure("gone", FailureCode.VERSION_GONE))
UNRESOLVED = EvaluatedSample(status=Status.UNRESOLVED, failure=a_failure("late", FailureCode.DEADLINE))


def answered(reward: float) -> EvaluatedSample:
    return EvaluatedSample(status=Status.COMPLETED, reward=reward)


def reported(*prompts: tuple[EvaluatedSample, ...], pass_threshold: float = 0.5) -> EvaluationReport:
    request = EvaluationRequest(
        environment="e", weight_version=3, num_prompts=len(prompts), num_samples=2, pass_threshold=pass_threshold
    )
    return report_of(
        request, 1.0, [EvaluatedPrompt(prompt=a_prompt(row), samples=each) for row, each in enumerate(prompts)]
    )


def test_a_prompt_with_a_missing_sample_is_counted_and_is_in_no_figure() -> None:
    complete = [(answered(1.0), answered(0.0)), (answered(0.0), answered(0.0)), (answered(0.5), answered(0.2))]
    others = [(answered(1.0), FAILED), (FAILED, FAILED), (answered(1.0), UNRESOLVED), (FAILED, UNRESOLVED)]
    report = reported(*complete, *others)
    assert (report.num_completed, report.num_failed, report.num_unresolved) == (3, 2, 2)
    assert report.mean_reward == pytest.approx((0.5 + 0.0 + 0.35) / 3)
    assert report.reward_interval == mean_interval([0.5, 0.0, 0.35])
    assert report.pass_at_k == pytest.approx({1: (0.5 + 0.0 + 0.5) / 3, 2: 2 / 3})
    assert [(one.code, one.count, one.example) for one in report.failures] == [
        (FailureCode.VERSION_GONE, 4, "gone"),
        (FailureCode.DEADLINE, 2, "late"),
    ]


def test_a_sample_passes_from_the_threshold_on() -> None:
    samples = (answered(0.2), answered(0.7))
    assert [reported(samples, pass_threshold=bar).pass_at_k[1] for bar in (0.2, 0.7, 0.71)] == [1.0, 0.5, 0.0]


def test_an_evaluation_without_a_reward_has_no_figures() -> None:
    report = reported((FAILED, FAILED))
    assert (report.mean_reward, report.reward_interval, report.pass_at_k) == (None, None, {})


def test_few_ks_are_exported() -> None:
    assert [exported_ks(num) for num in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]
