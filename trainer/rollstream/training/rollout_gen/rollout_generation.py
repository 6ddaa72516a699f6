"""`generate_rollout_batches`: batches one after another, in the caller's thread, with no state but the buffer's."""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any

from tenacity import Retrying

from rollstream.schemas.errors import ConfigurationError
from rollstream.training.datasets.data_buffer import DataBuffer
from rollstream.training.rollout_gen.groups import (
    Selection,
    Slot,
    calls_for,
    given_up,
    may_pass,
    new_groups,
    retrying,
    settle,
    with_own_reward,
    with_reward,
)
from rollstream.training.types import RolloutBatch, RolloutConfig, Sample


def generate_rollout_batches(buffer: DataBuffer, config: RolloutConfig) -> Iterator[RolloutBatch]:
    """Batches without end. Each asks for what it lacks in one call, and nothing is left for the next.

    After an error the buffer stands where the batch began. Here `timeout` has no effect: a call in this thread ends
    when it ends. Raises `ConfigurationError` for over-sampling and for functions that would have to be awaited.
    """
    if config.over_sampling_factor > 1:
        raise ConfigurationError(
            f"over_sampling_factor is {config.over_sampling_factor}, but generate_rollout_batches keeps nothing for "
            "the next batch: set it to 1, or use AsyncRolloutManager"
        )
    return _batches(buffer, config)


def _batches(buffer: DataBuffer, config: RolloutConfig) -> Iterator[RolloutBatch]:
    while True:
        before = buffer.save_state()
        try:
            batch = _next_batch(buffer, config)
        except BaseException:
            buffer.load_state(before)
            raise
        yield batch


def _next_batch(buffer: DataBuffer, config: RolloutConfig) -> RolloutBatch:
    selection = Selection(config)
    while count := selection.to_request(in_play=0):
        groups = new_groups(buffer, count, config)
        slots = [slot for group in groups for slot in group.slots]
        _called("generate_fn", partial(_ask, slots, config), groups[0].samples[0], config)
        for group in groups:
            group.samples = [_scored(sample, config) for sample in group.samples]
            selection.judge(group)
    return selection.batch()


def _ask(slots: list[Slot], config: RolloutConfig) -> None:
    for name, argument, asked in calls_for(slots, config):
        settle(asked, _at_once(name, getattr(config, name)(argument)), name)


def _scored(sample: Sample, config: RolloutConfig) -> Sample:
    score = config.reward_fn
    if score is None:
        return with_own_reward(sample)
    return with_reward(sample, _called("reward_fn", lambda: _at_once("reward_fn", score(sample)), sample, config))


def _called(name: str, function: Callable[[], Any], about: Sample, config: RolloutConfig) -> Any:
    try:
        return Retrying(**retrying(config))(function)
    except Exception as error:
        if not may_pass(error):
            raise
        raise given_up(error, name, about, config) from error


def _at_once(name: str, answer: Any) -> Any:
    if isawaitable(answer):
        if iscoroutine(answer):
            answer.close()
        raise ConfigurationError(f"{name} would have to be awaited: give a plain function, or use AsyncRolloutManager")
    return answer
