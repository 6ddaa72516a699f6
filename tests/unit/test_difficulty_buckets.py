"""Golden tables of the four strategies, of ties, of clusters and of intervals."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from rollstream.offline.difficulty.buckets import (
    BUCKETS,
    Cuts,
    Measure,
    adaptive_cuts,
    difficulty_score,
    percentile_cuts,
)
from rollstream.offline.difficulty.clusters import MAX_POINTS, cluster_ends


def counted(scores: Sequence[float]) -> list[tuple[float, int]]:
    return sorted(Counter(scores).items())


def divided(scores: Sequence[float]) -> dict[str, int]:
    """How many of the scores percentile puts into each bucket."""
    cuts = percentile_cuts(counted(scores), len(scores), (25.0, 50.0, 75.0))
    found = Counter(cuts.bucket(score) for score in scores)
    return {bucket: found[bucket] for bucket in BUCKETS if found[bucket]}


def test_percentile_puts_25_of_100_distinct_scores_into_each_bucket() -> None:
    scores = [number / 7 for number in range(100)]
    assert divided(scores) == {"easy": 25, "medium": 25, "hard": 25, "very_hard": 25}
    cuts = percentile_cuts(counted(scores), 100, (25.0, 50.0, 75.0))
    assert [cuts.bucket(score) for score in scores] == [bucket for bucket in BUCKETS for _ in range(25)]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.0] * 60 + [1.0] * 40, {"medium": 60, "very_hard": 40}),
        ([0.0] * 40 + [1.0] * 60, {"easy": 40, "hard": 60}),
        ([0.0] * 40 + [0.4, 0.5, 0.6] * 10 + [1.0] * 30, {"easy": 40, "medium": 10, "hard": 20, "very_hard": 30}),
        ([1.0] * 9, {"medium": 9}),
        ([0.0, 1.0], {"easy": 1, "hard": 1}),
        ([0.5], {"medium": 1}),
    ],
)
def test_problems_with_equal_scores_share_the_bucket_of_the_middle_of_their_ranks(
    scores: list[float], expected: dict[str, int]
) -> None:
    assert divided(scores) == expected


def test_a_score_rises_with_failures_and_with_mixed_results() -> None:
    assert difficulty_score(1.0, 0.0) == 0.0
    assert difficulty_score(0.0, 0.0) == 1.0
    assert difficulty_score(0.5, 0.5) == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("measure", "ends", "expected"),
    [
        (
            Measure.PASS_RATE, (80.0, 50.0, 20.0),
            {100.0: "easy", 80.0: "easy", 79.9: "medium", 50.0: "medium", 40.0: "hard", 20.0: "hard", 0.0: "very_hard"},
        ),
        (
            Measure.MEAN, (0.75, 0.5, 0.25),
            {1.0: "easy", 0.75: "easy", 0.5: "medium", 0.25: "hard", 0.24: "very_hard", -1.0: "very_hard"},
        ),
        (
            Measure.SCORE, (0.25, 0.5, 0.75),
            {0.25: "easy", 0.26: "medium", 0.5: "medium", 0.75: "hard", 0.76: "very_hard"},
        ),
    ],
)  # fmt: skip
def test_a_value_at_a_threshold_is_in_the_easier_bucket(
    measure: Measure, ends: tuple[float, float, float], expected: dict[float, str]
) -> None:
    cuts = Cuts(measure, ends)
    assert {value: cuts.bucket(value) for value in expected} == expected


def test_clusters_of_four_pairs_end_where_the_eye_sees_it() -> None:
    values = [1.0, 2.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0]
    assert cluster_ends(counted(values), 1.0, 31.0, 4) == [2.0, 11.0, 21.0, 31.0]


def test_many_equal_values_weigh_as_many() -> None:
    values = [0.0] * 100 + [1.0] * 100 + [2.0, 3.0]
    assert cluster_ends(counted(values), 0.0, 3.0, 3) == [0.0, 1.0, 3.0]


def test_the_division_is_the_best_of_all() -> None:
    chooser = random.Random(3)
    for _ in range(50):
        values = sorted({round(chooser.random(), 2) for _ in range(chooser.randint(5, 9))})
        ends = cluster_ends(counted(values), values[0], values[-1], 4)
        starts = [0, *(values.index(end) + 1 for end in ends)]
        assert spread(values, starts) == pytest.approx(min(all_spreads(values, 4)))


def all_spreads(values: list[float], k: int) -> list[float]:
    return [spread(values, [0, *inner, len(values)]) for inner in itertools.combinations(range(1, len(values)), k - 1)]


def spread(values: list[float], starts: list[int]) -> float:
    """The sum of squared distances of the values to the mean of their run."""
    runs = [values[start:end] for start, end in itertools.pairwise(starts)]
    return sum((value - sum(run) / len(run)) ** 2 for run in runs for value in run)


def test_more_different_values_than_points_are_divided_in_bins() -> None:
    values = [number / MAX_POINTS for number in range(4 * MAX_POINTS)]
    ends = cluster_ends([(value, 1) for value in values], values[0], values[-1], 4)
    assert [round(end, 2) for end in ends] == [1.0, 2.0, 3.0, 4.0]


def test_fewer_than_four_different_scores_cannot_be_clustered() -> None:
    assert adaptive_cuts([(0.0, 5), (0.5, 3), (1.0, 2)], 0.0, 1.0, 3) is None
    assert adaptive_cuts([(0.0, 5), (0.5, 3), (0.6, 1), (1.0, 2)], 0.0, 1.0, 4) == Cuts(Measure.SCORE, (0.0, 0.5, 0.6))
