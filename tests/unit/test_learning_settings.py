"""What each loss, correction and baseline brings of its own, and which settings do not fit each other."""

import math

import pytest
from pydantic import ValidationError

from rollstream.training.learning.settings import LearningSettings


@pytest.mark.parametrize(
    ("loss", "normalization", "clip"),
    [
        ("ppo", "dapo", (0.2, 0.2)), ("grpo", "grpo", (0.2, 0.2)), ("dr_grpo", "dr_grpo", (0.2, 0.2)),
        ("dapo", "dapo", (0.2, 0.28)), ("gspo", "grpo", (3e-4, 4e-4)),
    ],
)  # fmt: skip
def test_each_loss_brings_normalization_and_clip_range_of_its_paper_unless_the_settings_name_one(
    loss, normalization, clip
):
    assert LearningSettings(loss=loss).resolved_normalization == normalization
    assert LearningSettings(loss=loss, normalization="dr_grpo").resolved_normalization == "dr_grpo"
    assert LearningSettings(loss=loss).resolved_clip == clip
    assert LearningSettings(loss=loss, clip_high=0.1).resolved_clip == (clip[0], 0.1)
    assert LearningSettings(loss=loss, clip_low=0.1).resolved_clip == (0.1, clip[1])
    cispo = LearningSettings(loss="cispo")
    assert (cispo.resolved_normalization, cispo.resolved_clip) == ("dapo", (1.0, 4.0))


def test_correcting_for_lag_twice_is_refused():
    assert LearningSettings(old="behavior").resolved_correction == "none"
    for option in ({"importance_cap": 2.0}, {"importance_floor": 0.5}, {"correction": "sequence"}):
        with pytest.raises(ValidationError, match="twice"):
            LearningSettings(old="behavior", **option)


@pytest.mark.parametrize(
    ("loss", "option", "value"),
    [
        ("nll", "clip_low", 0.1), ("nll", "clip_high", 0.1), ("nll", "dual_clip", 3.0), ("nll", "old", "behavior"),
        ("nll", "correction", "token"), ("nll", "importance_cap", 3.0), ("nll", "importance_floor", 0.5),
        ("nll", "kl_coefficient", 0.1), ("nll", "entropy_coefficient", 0.1), ("cispo", "clip_low", 0.1),
        ("cispo", "dual_clip", 3.0), ("reinforce", "clip_low", 0.1), ("reinforce", "clip_high", 0.1),
        ("reinforce", "dual_clip", 3.0), ("reinforce", "old", "behavior"),
    ],
)  # fmt: skip
def test_a_loss_refuses_the_option_of_another_one(loss, option, value):
    with pytest.raises(ValidationError, match=f"{option} '?{value}'? with loss '{loss}': leave .* out") as raised:
        LearningSettings(loss=loss, **{option: value})
    assert "dapo" in str(raised.value)


@pytest.mark.parametrize(
    ("correction", "bounds"),
    [
        ("token", (0.0, 2.0)), ("sequence", (0.0, 3.0)), ("icepop", (0.5, 5.0)), ("mask_sequence", (0.0, 3.0)),
        (None, (0.0, 2.0)),
    ],
)  # fmt: skip
def test_each_correction_brings_its_own_bounds_unless_the_settings_name_some(correction, bounds):
    assert LearningSettings(correction=correction).resolved_importance == bounds
    assert LearningSettings(correction=correction, importance_cap=7.0).resolved_importance == (bounds[0], 7.0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"correction": "none", "importance_cap": 2.0}, ["importance_cap 2.0", "'none'"]),
        ({"importance_floor": 0.5}, ["importance_floor 0.5", "'token'", "icepop or mask_sequence"]),
        ({"correction": "sequence", "importance_floor": 0.5}, ["importance_floor 0.5", "'sequence'"]),
        ({"correction": "icepop", "importance_cap": 0.4}, ["importance_floor 0.5", "importance_cap 0.4"]),
        ({"kl_estimator": "k1"}, ["k1", "gradient is 0", "k2 or k3", "kl_in to 'reward'"]),
        ({"kl_in": "reward", "kl_estimator": "k3"}, ["k3", "k1", "kl_in to 'loss'"]),
        ({"kl_in": "reward"}, ["kl_in 'reward'", "kl_coefficient 0"]),
        ({"kl_estimator": "k2"}, ["kl_estimator 'k2'", "kl_coefficient 0"]),
        ({"reference_path": "other"}, ["reference_path", "kl_coefficient 0"]),
        ({"baseline": 0.5}, ["baseline 0.5", "group_mean", "'constant'"]),
        ({"advantages": "reinforce_plus_plus", "scale_advantages": "batch"}, ["'batch'", "reinforce_plus_plus"]),
        ({"advantages": "constant", "scale_advantages": "group"}, ["'group'", "constant", "about 0"]),
        ({"dual_clip": 1.0}, ["dual_clip", "greater than 1"]),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(options, named):
    with pytest.raises(ValidationError) as raised:
        LearningSettings(**options)
    assert all(part in str(raised.value) for part in named), raised.value


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({"reasoning": -1.0}, "reasoning"),
        ({"reasoning": math.nan}, "reasoning"),
        ({"reasoning": math.inf}, "reasoning"),
        ({"": 1.0}, "at least 1 character"),
        ({"a" * 129: 1.0}, "128"),
        ({f"type-{number}": 1.0 for number in range(65)}, "64"),
    ],
)
def test_weights_of_turns_are_bounded(weights, named):
    assert LearningSettings(turn_weights={"reasoning/3": 2.0, "summarization": 0.0}).turn_weights["reasoning/3"] == 2.0
    with pytest.raises(ValidationError, match=named):
        LearningSettings(turn_weights=weights)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"schedule": "cosine"}, "the other schedules need them"),
        ({"schedule_steps": 100}, "a constant learning rate has no schedule_steps"),
        ({"schedule": "linear", "schedule_steps": 10, "warmup_steps": 10}, "schedule_steps 10 must be above warmup"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(schedule, message):
    with pytest.raises(ValueError, match=message):
        LearningSettings(**schedule)
