"""What `filter-difficulty` found: as lines of text, and as JSON values, which are its summary."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rollstream.offline.difficulty.buckets import BUCKETS, UNKNOWN, Cuts, Strategy
from rollstream.offline.difficulty.metrics import BucketTotals
from rollstream.offline.scores.statistics import Reasons

ALL_BUCKETS: Final = (*BUCKETS, UNKNOWN)


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
