"""What `filter-difficulty` found: one line a problem, and a summary, as lines of text and as JSON values.

`difficulty_metrics_<strategy>.json` and `.parquet` have the lines. Field names are those of verl's filter. `pass_rate`
and its 95 % interval are percent. `problem_id` is also in the rows of the bucket files.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollstream.environments.pass_rates import wilson
from rollstream.offline.difficulty.buckets import BUCKETS, UNKNOWN, Cuts
from rollstream.offline.difficulty.problems import Problem
from rollstream.offline.options import Strategy
from rollstream.offline.statistics import Reasons, RewardStatistics
from rollstream.process.files import replacing, writable
from rollstream.rows.write import write_rows

ALL_BUCKETS: Final = (*BUCKETS, UNKNOWN)


class BucketTotals:
    """How many problems each bucket has, and the means of their measures."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._measures: defaultdict[tuple[str, str], RewardStatistics] = defaultdict(RewardStatistics)

    def add(self, problem: Problem) -> None:
        """Count one problem."""
        self.counts[problem.bucket] += 1
        self._measures[problem.bucket, "reward"].add(problem.mean)
        self._measures[problem.bucket, "pass_rate"].add(problem.pass_rate)
        self._measures[problem.bucket, "score"].add(problem.difficulty_score)

    def mean(self, bucket: str, name: str) -> float | None:
        """The mean of `reward`, `pass_rate` or `score` over the problems that have one; None if none has."""
        found = self._measures[bucket, name]
        return found.mean if found.num else None

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


@dataclass(slots=True)
class FilterReport:
    """What was found, as `summary_<strategy>.json` has it."""

    strategy: Strategy
    cuts: Cuts | None
    totals: BucketTotals
    min_samples: int
    notes: list[str]
    num_rows: int = 0
    rows_by_bucket: Counter[str] = field(default_factory=Counter)
    unscored: Reasons = field(default_factory=Reasons)
    bad_rows: Reasons = field(default_factory=Reasons)
    files: list[Path] = field(default_factory=list)


def summary_of(report: FilterReport, name: str) -> dict[str, Any]:
    """The summary as JSON values. The first four keys are those of the original's."""
    totals, cuts = report.totals, report.cuts
    ends = None if cuts is None else [end if math.isfinite(end) else None for end in cuts.ends]
    return {
        "total_problems": totals.counts.total(),
        "bucketing_strategy": report.strategy.value,
        "bucket_distribution": {bucket: totals.counts[bucket] for bucket in ALL_BUCKETS},
        "bucket_statistics": {
            bucket: {**totals.statistics(bucket), "num_rows": report.rows_by_bucket[bucket]}
            for bucket in ALL_BUCKETS
            if totals.counts[bucket]
        },
        "bucket_ends": {"measure": cuts.measure.value, **dict(zip(BUCKETS, ends, strict=False))}
        if cuts and ends
        else None,
        "min_samples": report.min_samples,
        "data": name,
        "num_rows": report.num_rows,
        "num_scored_rows": report.num_rows - report.unscored.total - report.bad_rows.total,
        "unscored_rows": report.unscored.plain(),
        "rows_left_out": report.bad_rows.plain(),
        "notes": report.notes,
    }


def filter_lines(report: FilterReport) -> Iterator[str]:
    """One line on the whole, one a bucket, one a reason."""
    totals = report.totals
    yield f"{totals.counts.total()} problems of {report.num_rows} rows, divided by {report.strategy}"
    for bucket in ALL_BUCKETS:
        if totals.counts[bucket]:
            reward, rate = totals.mean(bucket, "reward"), totals.mean(bucket, "pass_rate")
            told = "" if reward is None else f", mean reward {reward:.3f}"
            told += "" if rate is None else f", pass rate {rate:.1f} %"
            yield f"  {bucket}: {totals.counts[bucket]} problems, {report.rows_by_bucket[bucket]} rows{told}"
    yield from (f"  note: {note}" for note in report.notes)
    yield from (f"  not scored: {line}" for line in report.unscored.lines())
    yield from (f"  left out: {line}" for line in report.bad_rows.lines())
    yield f"  written: {', '.join(str(path) for path in report.files)}"
