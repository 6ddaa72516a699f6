"""pass@k against enumeration, and intervals against published examples and figures worked out by hand."""

from itertools import combinations, product
from statistics import fmean

import pytest

from rollstream.environments.pass_rates import mean_interval, pass_all_k, pass_at_k, wilson

OUTCOMES = tuple(product((False, True), repeat=8))


@pytest.mark.parametrize("k", range(1, 9))
def test_pass_at_k_is_the_share_of_choices_of_k_samples_in_which_one_passes(k: int) -> None:
    for outcome in OUTCOMES:
        chosen = [*combinations(outcome, k)]
        assert pass_at_k(8, sum(outcome), k) == pytest.approx(fmean(map(any, chosen)), abs=1e-12)
        assert pass_all_k(8, sum(outcome), k) == pytest.approx(fmean(map(all, chosen)), abs=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.03, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_pass_at_k_is_unbiased_over_all_outcomes(rate: float, k: int) -> None:
    probabilities = [rate ** sum(outcome) * (1 - rate) ** (8 - sum(outcome)) for outcome in OUTCOMES]
    estimates = [pass_at_k(8, sum(outcome), k) for outcome in OUTCOMES]
    expected = sum(each * estimate for each, estimate in zip(probabilities, estimates, strict=True))
    assert expected == pytest.approx(1 - (1 - rate) ** k, abs=1e-12)


def test_pass_at_k_of_many_samples_stays_a_probability() -> None:
    found = [pass_at_k(100_000, 3, k) for k in (1, 100, 99_997, 99_998, 100_000)]
    assert found == pytest.approx([3e-5, 2.99703e-3, 1.0, 1.0, 1.0], rel=1e-5)
    assert all(0 <= each <= 1 for each in found)


@pytest.mark.parametrize(("num_samples", "num_passed", "k"), [(8, 9, 1), (8, -1, 1), (8, 1, 0), (8, 1, 9)])
def test_what_cannot_be_estimated_is_refused(num_samples: int, num_passed: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"\d of 8 samples|of 8 samples it is 1 to 8"):
        pass_at_k(num_samples, num_passed, k)


@pytest.mark.parametrize(
    ("num_passed", "num_samples", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (1, 1, 0.2065, 1.0),
        (0, 1, 0.0, 0.7935),
        (4, 8, 0.2152, 0.7848),
        (8, 8, 0.6756, 1.0),
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilson_intervals(num_passed: int, num_samples: int, low: float, high: float) -> None:
    # 81 of 263 is the example of Newcombe 1998, table I.
    assert wilson(num_passed, num_samples) == pytest.approx((low, high), abs=5e-5)


def test_more_passes_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_the_interval_of_a_mean_is_over_tasks() -> None:
    # Mean 0.5, standard deviation 0.25 over 3 tasks.
    low, high = mean_interval([0.25, 0.5, 0.75]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.5 - 0.282896, 0.5 + 0.282896), abs=1e-6)


def test_the_interval_of_equal_outcomes_has_a_width_and_one_number_tells_nothing() -> None:
    assert mean_interval([1.0] * 8) == wilson(8, 8)
    assert mean_interval([0.0, 1.0, 1.0, 0.0]) == wilson(2, 4)
    assert mean_interval([0.3]) is None
    assert mean_interval([]) is None
