"""Statistics of rewards equal numpy's, and reasons are counted within a bound."""

import math

import numpy as np
import pytest

from rollstream.offline.moments import Moments
from rollstream.offline.scores.statistics import MAX_NAMES, OTHERS, Reasons, StatisticsBySource


def moments_of(*numbers: float) -> Moments:
    moments = Moments()
    for number in numbers:
        moments.add(number)
    return moments


@pytest.mark.parametrize(
    ("numbers", "mean", "std"),
    [
        ((1.0, 0.0, 0.0, 1.0), 0.5, 0.5),
        ((0.1, 0.1, 0.1), 0.1, 0.0),
        ((-1.0, 1.0, 1.0, 1.0), 0.5, math.sqrt(0.75)),
        ((2.0,), 2.0, 0.0),
    ],
)
def test_golden_means_and_population_deviations(numbers: tuple[float, ...], mean: float, std: float) -> None:
    moments = moments_of(*numbers)
    assert (moments.count, moments.mean, moments.lowest, moments.highest) == (
        len(numbers), mean, min(numbers), max(numbers)
    )  # fmt: skip
    assert moments.std == pytest.approx(std, abs=1e-15)


def test_they_equal_numpys_also_far_from_0() -> None:
    numbers = np.random.default_rng(5).normal(1e8, 3.0, size=20_000)
    moments = moments_of(*numbers.tolist())
    assert moments.mean == pytest.approx(float(numbers.mean()), rel=1e-14)
    assert moments.std == pytest.approx(float(numbers.std()), rel=1e-9)


def test_without_numbers_nothing_is_known() -> None:
    assert math.isnan(Moments().mean)
    assert math.isnan(Moments().std)


def test_sources_are_told_apart_and_rows_without_a_reward_count_in_no_mean() -> None:
    statistics = StatisticsBySource()
    for reward, passed in ((1.0, True), (-1.0, False), (None, None), (-1.0, None)):
        statistics.add("math_dapo", reward, passed)
    statistics.add("openai/gsm8k", None, None)
    dapo, gsm8k = statistics.sources["math_dapo"], statistics.sources["openai/gsm8k"]
    assert dapo.plain() == {
        "num_scored": 3,
        "num_unscored": 1,
        "mean": pytest.approx(-1 / 3),
        "std": pytest.approx(math.sqrt(8) / 3),
        "min": -1.0,
        "max": 1.0,
        "pass_rate": 0.5,
    }
    assert gsm8k.plain() == {
        "num_scored": 0, "num_unscored": 1, "mean": None, "std": None, "min": None, "max": None, "pass_rate": None
    }  # fmt: skip


def test_a_file_with_any_number_of_sources_and_reasons_takes_bounded_memory() -> None:
    statistics, reasons = StatisticsBySource(), Reasons()
    for number in range(MAX_NAMES + 7):
        statistics.add(f"source {number}", 1.0, True)
        reasons.add(f"reason_{number}: why", "row 1")
    assert len(statistics.sources) == len(reasons.counts) == MAX_NAMES + 1
    assert statistics.sources[OTHERS].rewards.count == reasons.counts[OTHERS] == 7


def test_a_source_with_a_name_as_long_as_a_row_is_one_of_the_others() -> None:
    statistics = StatisticsBySource()
    statistics.add("s" * 300, 1.0, True)
    statistics.add("t" * 301, 0.5, True)
    assert {name: one.rewards.mean for name, one in statistics.sources.items()} == {"s" * 300: 1.0, OTHERS: 0.5}


def test_reasons_are_counted_by_their_first_word_with_an_example() -> None:
    reasons = Reasons()
    reasons.add("timeout: took longer than 5 s", "row 3")
    reasons.add("timeout: took longer than 6 s", "row 4")
    reasons.add("something that a file had there", "row 5")
    assert reasons.total == 3
    assert reasons.lines() == [
        "2 x timeout, e.g. row 3: timeout: took longer than 5 s",
        "1 x other, e.g. row 5: something that a file had there",
    ]
