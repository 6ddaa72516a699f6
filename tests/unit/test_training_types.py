"""What samples, batches and settings of the training library refuse, and that the message says what to change."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollstream.schemas.bounds import MAX_REWARD
from rollstream.schemas.errors import BadMessageError, ConfigurationError, RewardError
from rollstream.training.types import (
    RLTrainingConfig,
    RolloutBatch,
    RolloutConfig,
    Sample,
    SampleStatus,
    SFTTrainingConfig,
)

FOUR: dict[str, Any] = {"prompt": "What is 2+2?", "response": "4", "tokens": [5, 6, 7, 8], "loss_mask": [0, 0, 1, 1]}


def a_config(**fields: Any) -> RolloutConfig:
    return RolloutConfig(**({"batch_size": 2, "generate_fn": lambda prompts: []} | fields))


def test_a_sample_keeps_plain_numbers_whatever_they_came_in() -> None:
    sample = Sample(
        prompt="2+2",
        tokens=np.array([5, 6], dtype=np.int32),
        loss_mask=(False, True),
        reward=True,
        rollout_log_probs=np.array([0, -0.5], dtype=np.float32),
    )
    assert (sample.tokens, sample.loss_mask, sample.rollout_log_probs) == ([5, 6], [0.0, 1.0], [0.0, -0.5])
    assert (sample.reward, sample.num_trained_tokens, sample.is_finished) == (1.0, 1, True)
    assert Sample.from_dict(json.loads(json.dumps(sample.to_dict()))) == sample


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("loss_mask", [0, 1], r"2 values for 4 tokens"),
        ("loss_mask", [], r"0 values for 4 tokens"),
        ("loss_mask", [0, 0, 0.5, 1], r"loss_mask\[2\].*0\.5.*0 or 1"),
        ("loss_mask", [0, 0, math.nan, 1], r"loss_mask\[2\].*nan"),
        ("tokens", [5, -1, 7, 8], r"tokens\[1\].*-1.*2147483647"),
        ("tokens", [5, 6, 7, 2**40], r"tokens\[3\]"),
        ("tokens", [5.0, 6, 7, 8], r"tokens .*flat list"),
        ("tokens", ["a"] * 4, r"tokens .*flat list"),
        ("tokens", [[5, 6], [7, 8]], r"tokens .*flat list"),
        ("tokens", [[5, 6], [7]], r"tokens .*flat list"),
        ("rollout_log_probs", [-1.0], r"rollout_log_probs .*1 values for 4"),
        ("rollout_log_probs", [0, 0, -math.inf, 0], r"rollout_log_probs\[2\].*finite"),
        ("status", "done", r"done.*pending.*completed"),
        ("response", None, "response.*text"),
        ("metadata", "correct", "metadata.*dict"),
        ("group_index", -1, "group_index.*from 0"),
        ("index", "1", "index.*from 0"),
        ("prompt", None, "no prompt"),
        ("prompt", [], "no prompt"),
    ],
)
def test_a_sample_that_does_not_fit_itself_is_refused(field: str, value: Any, named: str) -> None:
    with pytest.raises(BadMessageError, match=named):
        Sample(**(FOUR | {"group_index": 7, "index": 1, field: value}))


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1.0", MAX_REWARD * 2])
def test_a_reward_that_is_no_usable_number_is_refused_with_the_sample_named(reward: Any) -> None:
    with pytest.raises(RewardError, match=r"sample 3 of group 17.*2\+2"):
        Sample(**FOUR, reward=reward, group_index=17, index=3)


@pytest.mark.parametrize("stored", [None, [], {}, {"prompt": "a", "colour": 1}, {"response": "b"}])
def test_a_stored_sample_of_a_stranger_is_refused(stored: Any) -> None:
    with pytest.raises(BadMessageError, match="stored sample"):
        Sample.from_dict(stored)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.floats(-50, 0))), st.sampled_from(SampleStatus))
def test_any_sample_comes_back_from_plain_data(rows: list[tuple[int, bool, float]], status: SampleStatus) -> None:
    tokens, mask, logprobs = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    sample = Sample("p", tokens=tokens, loss_mask=mask, rollout_log_probs=logprobs, status=status, metadata={"a": [1]})
    assert Sample.from_dict(json.loads(json.dumps(sample.to_dict()))) == sample


def test_a_batch_of_samples_has_a_row_for_each() -> None:
    first = Sample(**FOUR, reward=1.0, group_index=7, index=0, rollout_log_probs=[0, 0, -1, -2])
    second = replace(
        first, response="5", reward=0.0, index=1, status=SampleStatus.TRUNCATED, metadata={"correct": False}
    )
    batch = RolloutBatch.of([first, second], num_dropped={"flat": 2})
    assert batch.tokens == [first.tokens, second.tokens]
    assert (batch.rewards, batch.response_lengths, batch.group_indices) == ([1.0, 0.0], [2, 2], [7, 7])
    assert batch.rollout_log_probs == [[0, 0, -1, -2]] * 2
    assert batch.metadata == {
        "prompts": ["What is 2+2?"] * 2,
        "responses": ["4", "5"],
        "statuses": ["completed", "truncated"],
        "sample_metadata": [{}, {"correct": False}],
        "num_dropped": {"flat": 2},
    }
    assert RolloutBatch.of([first, replace(second, rollout_log_probs=None)]).rollout_log_probs is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"reward": None}, RewardError),
        ({"tokens": [], "loss_mask": []}, BadMessageError),
        ({"status": SampleStatus.ABORTED}, BadMessageError),
        ({"status": SampleStatus.PENDING}, BadMessageError),
    ],
)
def test_a_sample_that_cannot_train_is_refused_with_its_name(change: Any, error: type[Exception]) -> None:
    good = Sample(**FOUR, reward=1.0, group_index=17, index=0)
    with pytest.raises(error, match="sample 3 of group 17"):
        RolloutBatch.of([good, replace(good, index=3, **change)])


@pytest.mark.parametrize(
    ("field", "value"),
    [("rewards", [1.0]), ("loss_masks", [[1], [1, 1]]), ("response_lengths", []), ("tokens", [[1], []]),
     ("group_indices", [1]), ("rollout_log_probs", [[0.0], [0.0, 0.0]])],
)  # fmt: skip
def test_a_batch_whose_rows_do_not_fit_each_other_is_refused(field: str, value: Any) -> None:
    rows = {"tokens": [[1], [2]], "loss_masks": [[1], [1]], "rewards": [1.0, 0.0], "response_lengths": [1, 1]}
    RolloutBatch(**rows)
    with pytest.raises(BadMessageError, match=r"row"):
        RolloutBatch(**(rows | {field: value}))


def test_a_batch_with_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(RewardError, match="row 1"):
        RolloutBatch(tokens=[[1], [2]], loss_masks=[[1], [1]], rewards=[1.0, math.nan], response_lengths=[1, 1])


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        ("batch_size", 0, "1"),
        ("batch_size", 2.5, "whole"),
        ("batch_size", True, "whole"),
        ("n_samples_per_prompt", 0, "1"),
        ("over_sampling_factor", 0.9, "1"),
        ("over_sampling_factor", math.nan, "1"),
        ("over_sampling_factor", math.inf, "1"),
        ("max_resampling", -1, "0"),
        ("max_attempts", 0, "1"),
        ("retry_delay", -1.0, "0"),
        ("timeout", 0, "0.001"),
        ("generate_fn", None, "function"),
        ("generate_fn", "vllm", "function"),
        ("reward_fn", 1.0, "function"),
        ("resume_fn", [], "function"),
        ("filter_fn", "check_min_reward", "function"),
        ("filter_fn", [len, None], "function"),
    ],
)
def test_a_setting_of_rollouts_that_cannot_be_is_refused(field: str, value: Any, bound: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}.*{bound}"):
        a_config(**{field: value})


@pytest.mark.parametrize("field", ["num_steps", "batch_size", "log_every", "checkpoint_every"])
def test_a_setting_of_sft_below_one_is_refused(field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}.*at least 1"):
        SFTTrainingConfig(**({"num_steps": 1, "batch_size": 1} | {field: 0}))


@pytest.mark.parametrize(
    ("field", "value"), [("num_steps", 0), ("sync_every", 0), ("log_every", -1), ("checkpoint_every", 0),
                         ("baseline", math.nan), ("baseline", "0")],
)  # fmt: skip
def test_a_setting_of_rl_that_cannot_be_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=field):
        RLTrainingConfig(**({"num_steps": 1} | {field: value}))


def test_the_defaults_are_those_of_the_document() -> None:
    assert SFTTrainingConfig(num_steps=1000, batch_size=4) == SFTTrainingConfig(
        num_steps=1000, batch_size=4, log_every=100, checkpoint_every=500
    )
    assert RLTrainingConfig(num_steps=1000) == RLTrainingConfig(
        num_steps=1000, sync_every=10, baseline=0.0, log_every=10, checkpoint_every=100
    )
    config = a_config()
    assert (config.n_samples_per_prompt, config.over_sampling_factor, config.filters) == (1, 1.0, ())


@pytest.mark.parametrize(("batch_size", "factor", "asked"), [(32, 1.5, 48), (32, 1.0, 32), (3, 1.5, 5), (10, 1.1, 11)])
def test_over_sampling_asks_for_at_least_the_factor(batch_size: int, factor: float, asked: int) -> None:
    assert a_config(batch_size=batch_size, over_sampling_factor=factor).num_requested == asked
