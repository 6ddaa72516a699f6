"""What lag drops of the answers, by hand-computed numbers."""

import numpy as np
import pytest

from tests.bench.length_bias import TRAINED, answers_of, figures, ks_distance, too_old_share_of_tokens

ANSWERS = [("short", 10), ("short", 30), ("long", 20), ("long", 140), ("flat", 100), ("flat", 0), ("open", 900)]
FATES = {"short": TRAINED, "long": "too_old", "flat": "no_spread", "without answers": "too_old"}


def lengths(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_distance_is_the_largest_gap_between_the_two_curves() -> None:
    # Below 3 the parts at most as long are 2/2 and 2/4.
    assert ks_distance(lengths(1, 2), lengths(1, 2, 3, 4)) == pytest.approx(0.5)
    # At 5: 1/3 and 3/4; at 1: 0 and 1/4.
    assert ks_distance(lengths(9, 5, 9), lengths(1, 5, 5, 9)) == pytest.approx(3 / 4 - 1 / 3)


def test_the_same_lengths_in_another_order_and_number_have_no_distance() -> None:
    assert ks_distance(lengths(7, 3, 3, 7), lengths(3, 7)) == 0.0


def test_of_no_lengths_at_all_everything_is_missing() -> None:
    assert ks_distance(lengths(), lengths(1, 2)) == 1.0
    assert ks_distance(lengths(1), lengths()) == 1.0


def test_only_answers_with_tokens_of_the_counted_groups_are_taken() -> None:
    found = answers_of(ANSWERS, FATES)
    assert found.lengths.tolist() == [10, 30, 20, 140, 100]
    assert found.trained.tolist() == [10, 30]
    assert found.lengths[found.are_too_old].tolist() == [20, 140]


def test_the_share_dropped_for_lag_is_of_tokens_and_other_reasons_are_counted_apart() -> None:
    assert too_old_share_of_tokens(answers_of(ANSWERS, FATES)) == 160 / 300
    found = figures(answers_of(ANSWERS, FATES))
    assert found["num_tokens"] == 300
    assert found["num_samples"] == 5
    assert found["groups"] == {TRAINED: 1, "too_old": 2, "no_spread": 1}
    # At 30 both trained answers are reached, and three of all five.
    assert found["ks_distance"] == 0.4
    assert found["tokens_of_an_answer"]["generated"]["p50"] == 30
    assert found["tokens_of_an_answer"]["trained"]["mean"] == 20
    # Quarters of 10, 20 | 30 | 100 | 140.
    assert found["too_old_share_by_quartile_of_length"] == [0.5, 0.0, 0.0, 1.0]


def test_a_run_in_which_nothing_closed_has_figures_too() -> None:
    assert too_old_share_of_tokens(answers_of([], {})) == 0.0
    found = figures(answers_of([], {}))
    assert found["ks_distance"] == 1.0
    assert found["tokens_of_an_answer"] == {"generated": {}, "trained": {}}
