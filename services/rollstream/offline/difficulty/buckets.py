"""Where the buckets of difficulty end. Pure.

The four strategies, their bucket names and their thresholds are those of a known difficulty filter (manncodes/verl,
`filter_difficulty.py`), with two differences, both for ties:

- percentile: problems with the same score share a bucket, that of the middle of their ranks. The original compares with
  quantiles, so that where many problems are never solved, these end as `hard`, and `very_hard` is empty.
- adaptive: exact k-means on the score alone instead of scikit-learn's on four measures. With fewer than four different
  scores there is nothing to divide: then the thresholds of mean_reward decide.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rollstream.offline.difficulty.clusters import cluster_ends
from rollstream.offline.options import Three

BUCKETS: Final = ("easy", "medium", "hard", "very_hard")
UNKNOWN: Final = "unknown"
"""The bucket of problems with too few samples."""
STD_WEIGHT: Final = 0.3


class Measure(StrEnum):
    """What is compared with the ends of the buckets: a column of the table of problems."""

    SCORE = "difficulty_score"
    PASS_RATE = "pass_rate"
    MEAN = "mean_normalized"


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ends of the first three buckets, in their order."""

    measure: Measure
    ends: Three

    def bucket(self, value: float) -> str:
        """The bucket of a problem with this value."""
        harder_is_more = self.measure is Measure.SCORE
        for name, end in zip(BUCKETS, self.ends, strict=False):
            if value <= end if harder_is_more else value >= end:
                return name
        return BUCKETS[-1]


def difficulty_score(mean: float, std: float) -> float:
    """1 - mean + 0.3 std of normalized rewards: 0 is always solved, 1 never; mixed results make a problem harder."""
    return 1.0 - mean + STD_WEIGHT * std


def percentile_cuts(scores: Iterable[tuple[float, int]], num_problems: int, percentiles: Three) -> Cuts:
    """Cuts at `percentiles` of the scores, which come as (score, how many problems), ascending.

    Problems with equal scores count at the middle of their ranks.
    """
    ends = [-math.inf] * 3
    before = 0
    for score, count in scores:
        middle = 100 * (2 * before + count) / (2 * num_problems)
        before += count
        for place, percentile in enumerate(percentiles):
            if middle <= percentile:
                ends[place] = score
    return Cuts(Measure.SCORE, (ends[0], ends[1], ends[2]))


def adaptive_cuts(
    scores: Iterable[tuple[float, int]], lowest: float, highest: float, num_different: int
) -> Cuts | None:
    """Cuts between the four clusters of the scores (value, how many problems), ascending; None with fewer than four."""
    if num_different < len(BUCKETS):
        return None
    ends = cluster_ends(scores, lowest, highest, len(BUCKETS))
    return Cuts(Measure.SCORE, (ends[0], ends[1], ends[2]))
