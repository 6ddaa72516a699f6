"""metadata.json of a run of verifiers, computed from its rows: averages, and pass@k of examples with several samples.

Facts of verifiers: an example's sample passes from `pass_threshold` on, and k is each power of 2 up to the number of
samples; pass@k and pass^k are averaged over the examples. A sample without a reward neither passed nor failed: where
there is one, no pass figure is given.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rollstream.environments.pass_rates import pass_all_k, pass_at_k
from rollstream.offline.convert.verifiers_row import metrics_of
from rollstream.offline.statistics import RewardStatistics
from rollstream.process.database import Database
from rollstream.schemas.values import with_whole_numbers

PASS_THRESHOLD: Final = 0.5
_MOST_METRICS: Final = 1000


class RunFigures:
    """What metadata.json says of a run's rows. Constant memory: examples are counted in a temporary database."""

    def __init__(self) -> None:
        self.rewards = RewardStatistics()
        self._metrics: defaultdict[str, RewardStatistics] = defaultdict(RewardStatistics)
        self._num_rows = self._num_errors = 0
        self._database = Database(
            None, "CREATE TABLE examples (id BLOB PRIMARY KEY, num INTEGER, passed INTEGER) WITHOUT ROWID"
        )

    def add(self, result: Mapping[str, Any], *, zero_for_failed: bool = False) -> None:
        """Count a row of results.jsonl. verifiers writes 0.0 where an error ended a sample: that is no reward here."""
        has_error = bool(result.get("error"))
        reward = None if has_error and not zero_for_failed else result.get("reward")
        self._num_rows += 1
        self._num_errors += has_error
        self.rewards.add(reward)
        metrics = result.get("metrics")
        for name, value in (metrics if isinstance(metrics, dict) else metrics_of(result)).items():
            if name in self._metrics or len(self._metrics) < _MOST_METRICS:
                self._metrics[name].add(value)
        has_passed = isinstance(reward, int | float) and not isinstance(reward, bool) and reward >= PASS_THRESHOLD
        self._database.run(
            "INSERT INTO examples VALUES (?, 1, ?) "
            "ON CONFLICT (id) DO UPDATE SET num = num + 1, passed = passed + excluded.passed",
            repr(with_whole_numbers(result.get("example_id"))).encode("utf-8", "replace"),
            has_passed,
        )

    def metadata(self) -> dict[str, Any]:
        """The computed part of metadata.json.

        Viewers multiply the two counts. Where examples have not equally many samples, each row counts as an example.
        """
        [(num_examples, least, most)] = self._database.read("SELECT count(*), min(num), max(num) FROM examples")
        is_even = least == most
        is_judged = is_even and num_examples and not self.rewards.num_without
        any_passed, all_passed = self._passes(most) if is_judged else ({}, {})
        return {
            "num_examples": num_examples if is_even else self._num_rows,
            "rollouts_per_example": most or 0 if is_even else 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "avg_reward": _finite(self.rewards.mean),
            "avg_metrics": {name: figure.mean for name, figure in self._metrics.items() if figure.num},
            "avg_error": self._num_errors / self._num_rows if self._num_rows else 0.0,
            "pass_at_k": any_passed,
            "pass_all_k": all_passed,
            "pass_threshold": PASS_THRESHOLD,
        }

    def close(self) -> None:
        """Delete the database."""
        self._database.close()

    def _passes(self, num_samples: int) -> tuple[dict[str, float], dict[str, float]]:
        """pass@k and pass^k for samples of which all examples have `num_samples`; empty for one sample."""
        counted = list(self._database.read("SELECT passed, count(*) FROM examples GROUP BY passed"))
        num_examples = sum(times for _, times in counted)
        any_passed, all_passed = dict[str, float](), dict[str, float]()
        for k in _powers(num_samples) if num_samples > 1 else ():
            for estimates, of_example in ((any_passed, pass_at_k), (all_passed, pass_all_k)):
                summed = sum(times * of_example(num_samples, passed, k) for passed, times in counted)
                estimates[str(k)] = summed / num_examples
        return any_passed, all_passed


def _powers(limit: int) -> list[int]:
    return [2**exponent for exponent in range(limit.bit_length())]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
