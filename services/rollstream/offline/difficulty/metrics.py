"""Writes one line a problem: `difficulty_metrics_<strategy>.json` and `.parquet`. Field names are the original's.

`pass_rate` and its 95 % interval are percent. `problem_id` is also in the rows of the bucket files.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rollstream.offline.difficulty.buckets import Strategy
from rollstream.offline.difficulty.intervals import wilson
from rollstream.offline.difficulty.problems import Problem
from rollstream.offline.moments import Moments
from rollstream.process.files import replacing, writable
from rollstream.rows.write import write_rows


class BucketTotals:
    """How many problems each bucket has, and the means of their measures."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._means: dict[tuple[str, str], Moments] = {}

    def add(self, problem: Problem) -> None:
        """Count one problem."""
        self.counts[problem.bucket] += 1
        measures = (("reward", problem.mean), ("pass_rate", problem.pass_rate), ("score", problem.difficulty_score))
        for name, value in measures:
            moments = self._means.setdefault((problem.bucket, name), Moments())
            if value is not None:
                moments.add(value)

    def mean(self, bucket: str, name: str) -> float | None:
        """The mean of `reward`, `pass_rate` or `score` over the problems that have one; None if none has."""
        moments = self._means.get((bucket, name))
        return moments.mean if moments is not None and moments.count else None

    def statistics(self, bucket: str) -> dict[str, Any]:
        """Of one bucket, as JSON values."""
        return {
            "count": self.counts[bucket],
            "mean_reward": self.mean(bucket, "reward"),
            "mean_pass_rate": self.mean(bucket, "pass_rate"),
            "mean_difficulty_score": self.mean(bucket, "score"),
        }


def metrics_of(problem: Problem) -> dict[str, Any]:
    """The line of one problem, as JSON values."""
    low, high = wilson(problem.num_passed, problem.num_judged)
    is_judged = problem.num_judged > 0
    return {
        "problem_id": problem.problem.hex(),
        "data_idx": problem.data_idx,
        "data_source": problem.source or None,
        "num_samples": problem.num_samples,
        "num_unscored": problem.num_rows - problem.num_samples,
        "mean_reward": problem.mean,
        "std_reward": problem.std,
        "min_reward": problem.lowest,
        "max_reward": problem.highest,
        "mean_normalized": problem.mean_normalized,
        "num_passed": problem.num_passed if is_judged else None,
        "pass_rate": problem.pass_rate,
        "pass_rate_low": 100 * low if is_judged else None,
        "pass_rate_high": 100 * high if is_judged else None,
        "difficulty_score": problem.difficulty_score,
        "difficulty_bucket": problem.bucket,
    }


def write_metrics(folder: Path, strategy: Strategy, problems: Iterable[Problem], totals: BucketTotals) -> list[Path]:
    """Write both files, and count the problems into `totals`. Returns the paths."""
    as_json, as_parquet = (folder / f"difficulty_metrics_{strategy}.{kind}" for kind in ("json", "parquet"))
    with write_rows(as_parquet, "parquet") as writer, replacing(as_json) as stream, writable(as_json):
        stream.write(b"[")
        for number, problem in enumerate(problems):
            totals.add(problem)
            line = metrics_of(problem)
            stream.write(f"{',' if number else ''}\n  {json.dumps(line, ensure_ascii=False)}".encode())
            writer.write(line)
        stream.write(b"\n]\n")
    return [as_json, as_parquet]
