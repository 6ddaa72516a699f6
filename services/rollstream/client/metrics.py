"""What an evaluation that follows a run exports to Prometheus: the newest evaluated version."""

from typing import Final

from prometheus_client import Counter, Gauge

from rollstream.client.evaluation import EvaluationReport
from rollstream.schemas.rollout import Status

VERSION = Gauge("rollstream_evaluate_weight_version", "The newest version that was evaluated")
REWARD = Gauge("rollstream_evaluate_reward", "Its mean reward over the prompts of which every sample completed")
REWARD_LOW = Gauge("rollstream_evaluate_reward_low", "Lower end of the 95 % interval of the mean reward")
REWARD_HIGH = Gauge("rollstream_evaluate_reward_high", "Upper end of the 95 % interval of the mean reward")
PASSES = Gauge("rollstream_evaluate_pass_at_k_ratio", "pass@k, for the powers of 2 and the number of samples", ["k"])
PROMPTS = Gauge("rollstream_evaluate_prompts", "Its prompts, by how they ended; only completed ones count", ["status"])
EVALUATED = Counter("rollstream_evaluate_evaluations_total", "Versions that were evaluated")
SKIPPED = Counter("rollstream_evaluate_skipped_evaluations_total", "Those that came due while another one went on")

_NAN: Final = float("nan")


def export(report: EvaluationReport, num_skipped: int) -> None:
    """Export an evaluation; what it does not know is NaN."""
    VERSION.set(report.weight_version)
    low, high = report.reward_interval or (_NAN, _NAN)
    for gauge, value in ((REWARD, report.mean_reward), (REWARD_LOW, low), (REWARD_HIGH, high)):
        gauge.set(_NAN if value is None else value)
    for k in exported_ks(report.num_samples):
        PASSES.labels(k=str(k)).set(report.pass_at_k.get(k, _NAN))
    counts = (report.num_completed, report.num_failed, report.num_unresolved)
    for status, count in zip((Status.COMPLETED, Status.FAILED, Status.UNRESOLVED), counts, strict=True):
        PROMPTS.labels(status=status.value).set(count)
    EVALUATED.inc()
    SKIPPED.inc(num_skipped)


def exported_ks(num_samples: int) -> list[int]:
    """The powers of 2 below the number of samples, and that number: few, so that the label is bounded."""
    return [*(2**exponent for exponent in range((num_samples - 1).bit_length())), num_samples]
