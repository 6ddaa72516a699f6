"""Batches from the plain generator: the same groups as the manager's, in the caller's thread."""

import threading
from itertools import islice
from typing import Any

import pytest

from rollstream.schemas.errors import ConfigurationError, EngineError, RewardError
from rollstream.training.datasets import DataBuffer
from rollstream.training.filters import check_reward_nonzero_std
from rollstream.training.rollout_gen import generate_rollout_batches
from rollstream.training.types import Prompt, RolloutBatch, RolloutConfig, Sample
from tests.harness.rollout_functions import ShuffledEngine, answered, groups_of


def answers(prompts: list[Prompt]) -> list[Sample]:
    return [answered(prompt, number) for number, prompt in enumerate(prompts)]


def a_config(**fields: Any) -> RolloutConfig:
    return RolloutConfig(**({"batch_size": 2, "generate_fn": answers, "retry_delay": 0} | fields))


def batches(count: int, buffer: DataBuffer | None = None, **fields: Any) -> list[RolloutBatch]:
    prompts = [f"prompt {number}" for number in range(5)]
    return list(islice(generate_rollout_batches(buffer or DataBuffer(prompts), a_config(**fields)), count))


def test_batches_go_on_over_epochs_in_whole_groups_with_numbers_of_their_own() -> None:
    found = batches(5, n_samples_per_prompt=3)
    groups = groups_of(*found)
    assert list(groups) == list(range(10))
    assert all(list(prompts.values()) == [3] for prompts in groups.values())
    asked = [next(iter(prompts)) for prompts in groups.values()]
    assert asked == DataBuffer([f"prompt {number}" for number in range(5)]).get_prompts(10)


def test_the_function_is_called_in_the_callers_thread() -> None:
    threads = []

    def noting(prompts: list[Prompt]) -> list[Sample]:
        threads.append(threading.current_thread())
        return answers(prompts)

    batches(2, generate_fn=noting)
    assert threads == [threading.current_thread()] * 2


def test_dropped_groups_are_asked_for_again_and_counted() -> None:
    def reward(sample: Sample) -> float:
        return 0.0 if sample.group_index == 0 else float(sample.index or 0)

    [batch] = batches(1, n_samples_per_prompt=2, reward_fn=reward, filter_fn=check_reward_nonzero_std)
    assert batch.group_indices == [1, 1, 2, 2]
    assert batch.metadata["dropped"] == {"check_reward_nonzero_std (each reward 0)": 1}


def test_a_filter_that_rejects_everything_ends_with_its_reasons() -> None:
    with pytest.raises(ConfigurationError, match=r"0 of the 2 .*dropped 8 .*check_reward_nonzero_std.*max_resampling"):
        batches(
            1, n_samples_per_prompt=2, reward_fn=lambda _: 1.0, filter_fn=check_reward_nonzero_std, max_resampling=3
        )


def test_over_sampling_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigurationError, match=r"over_sampling_factor is 1\.5.*AsyncRolloutManager"):
        generate_rollout_batches(DataBuffer(["a"]), a_config(over_sampling_factor=1.5))


async def late(_: Any) -> Any:
    return 1.0


@pytest.mark.parametrize("fields", [{"generate_fn": ShuffledEngine()}, {"reward_fn": late}])
def test_a_function_that_must_be_awaited_is_refused(fields: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(fields))}.*awaited.*AsyncRolloutManager"):
        batches(1, **fields)


def test_after_an_error_the_buffer_stands_where_the_batch_began() -> None:
    buffer = DataBuffer([f"prompt {number}" for number in range(5)])
    calls = []

    def fails(prompts: list[Prompt]) -> list[Sample]:
        calls.append(prompts)
        if 1 < len(calls) < 5:
            raise ConnectionError("the server went away")
        return answers(prompts)

    with pytest.raises(EngineError, match=r"generate_fn failed 3 times.*server went away"):
        batches(2, buffer, generate_fn=fails, max_attempts=3)
    assert (buffer.position, len(calls)) == (2, 4)
    assert batches(1, buffer, generate_fn=fails)[0].metadata["prompts"] == calls[1]


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_a_reward_that_is_no_number_is_refused_with_the_sample_named(reward: Any) -> None:
    with pytest.raises(RewardError, match="sample 0 of group 0"):
        batches(1, reward_fn=lambda _: reward)


def test_a_reward_function_that_fails_is_asked_again() -> None:
    calls = []

    def fails_first(sample: Sample) -> float:
        calls.append(sample)
        if len(calls) == 1:
            raise ConnectionError("the verifier went away")
        return 1.0

    assert batches(1, reward_fn=fails_first)[0].rewards == [1.0, 1.0]
    calls.clear()
    with pytest.raises(RewardError, match=r"reward_fn failed 1 times.*verifier went away"):
        batches(1, reward_fn=fails_first, max_attempts=1)
