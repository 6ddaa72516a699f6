"""Batches of whole groups from the rollout manager: over-sampling, order, rewards, filters, failures and deadlines."""

import asyncio
import math
import threading
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollstream.schemas.errors import BadMessageError, ConfigurationError, EngineDeadError, EngineError, RewardError
from rollstream.training.filters import check_reward_nonzero_std
from rollstream.training.rollout_gen.groups import RolloutGroup, Selection
from rollstream.training.types import Prompt, RolloutBatch, Sample, SampleStatus
from tests.harness.rollout_functions import HeldEngine, ShuffledEngine, a_manager, answered, groups_of


async def batches_of(manager: Any, count: int, **arguments: Any) -> list[RolloutBatch]:
    async with manager:
        return [await manager.generate_batch(**arguments) for _ in range(count)]


def test_over_sampling_asks_for_half_as_much_again_and_what_is_left_over_begins_the_next_batch() -> None:
    engine = ShuffledEngine()
    manager = a_manager(engine, batch_size=32, over_sampling_factor=1.5)

    async def run() -> tuple[RolloutBatch, list[int], RolloutBatch]:
        async with manager:
            first = await manager.generate_batch()
            assert len(engine.asked) == 48
            while any(group[0]["status"] == "pending" for group in manager.state_dict()["groups"]):
                await asyncio.sleep(0)
            left = [group[0]["group_index"] for group in manager.state_dict()["groups"]]
            return first, left, await manager.generate_batch()

    first, left, second = asyncio.run(run())
    assert first.group_indices is not None
    assert second.group_indices is not None
    assert (len(first.tokens), first.metadata["waiting"]) == (32, 16)
    assert sorted(first.group_indices + left) == list(range(48))
    assert second.group_indices[:16] == left
    assert min(second.group_indices[16:]) >= 48
    assert len(engine.asked) == 80, "16 are left over, so 32 more make 48"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([1.0, 1.5, 3.0]), st.integers(1, 5))
def test_every_group_is_whole_and_has_one_prompt_in_whatever_order_answers_come(
    seed: int, batch_size: int, factor: float, size: int
) -> None:
    engine = ShuffledEngine(seed, fails=lambda number: number % 5 == 3)
    manager = a_manager(
        engine, 7, batch_size=batch_size, over_sampling_factor=factor, n_samples_per_prompt=size, max_attempts=20
    )
    batches = asyncio.run(batches_of(manager, 4))
    groups = groups_of(*batches)
    assert len(groups) == 4 * batch_size, "no group_index came twice"
    assert all(list(prompts.values()) == [size] for prompts in groups.values())
    epochs = [next(iter(prompts)) for _, prompts in sorted(groups.items())]
    assert factor > 1 or all(len(set(epochs[start : start + 7])) == 7 for start in range(0, len(epochs) - 6, 7))


@pytest.mark.parametrize(
    ("kept", "dropped", "in_play", "asked"),
    [(0, 0, 0, 5), (0, 0, 2, 3), (0, 0, 5, 0), (1, 0, 2, 0), (1, 1, 1, 2), (2, 3, 0, 2), (2, 4, 1, 0), (0, 8, 0, 2),
     (0, 9, 1, 0), (2, 8, 0, 0)],
)  # fmt: skip
def test_what_is_asked_for_at_the_start_and_after_drops(kept: int, dropped: int, in_play: int, asked: int) -> None:
    """Of a batch of 3 with factor 1.5: 5 at the start, half as much again as what is missing later, 10 in all."""
    config = a_manager(answers_at_once, batch_size=3, over_sampling_factor=1.5, max_resampling=1).config
    group = RolloutGroup(0, [answered("2+2")])
    selection = Selection(config, kept=[group] * kept, dropped=Counter(drop=dropped))
    assert selection.to_request(in_play) == asked


def test_answers_of_one_call_are_matched_by_their_prompt() -> None:
    def reversed_answers(prompts: list[Prompt]) -> list[Sample]:
        return [answered(prompt, number) for number, prompt in enumerate(prompts)][::-1]

    batch = asyncio.run(a_manager(reversed_answers, n_samples_per_prompt=3).generate_batch())
    assert len(set(batch.metadata["responses"])) == 12, "each answer was taken once"
    assert all(list(prompts.values()) == [3] for prompts in groups_of(batch).values())


class Answering:
    async def __call__(self, prompts: list[Prompt]) -> list[Sample]:
        return [answered(prompt) for prompt in prompts]


def answers_at_once(prompts: list[Prompt]) -> list[Sample]:
    return [answered(prompt) for prompt in prompts]


def answers_when_awaited(prompts: list[Prompt]) -> Coroutine[Any, Any, list[Sample]]:
    return Answering()(prompts)


@pytest.mark.parametrize("function", [answers_at_once, Answering(), Answering().__call__, answers_when_awaited])
def test_a_function_may_be_sync_or_async(function: Any) -> None:
    manager = a_manager(function, n_samples_per_prompt=2, over_sampling_factor=1.5)
    assert len(groups_of(*asyncio.run(batches_of(manager, 3)))) == 12


def test_a_sync_function_does_not_hold_up_the_event_loop() -> None:
    goes_on = threading.Event()

    def waits(prompts: list[Prompt]) -> list[Sample]:
        assert goes_on.wait(30), "the event loop stood still"
        return answers_at_once(prompts)

    async def run() -> RolloutBatch:
        batch = asyncio.create_task(a_manager(waits).generate_batch())
        await asyncio.sleep(0)
        goes_on.set()
        return await batch

    assert len(asyncio.run(run()).tokens) == 4


def test_a_sync_function_gets_all_prompts_in_one_call_and_never_two_at_a_time() -> None:
    calls: list[int] = []
    inside = threading.Lock()

    def counts(prompts: list[Prompt]) -> list[Sample]:
        with inside:
            calls.append(len(prompts))
            return answers_at_once(prompts)

    manager = a_manager(counts, batch_size=8, over_sampling_factor=1.5, n_samples_per_prompt=2)
    asyncio.run(batches_of(manager, 2))
    assert calls == [24, 16]


def test_what_a_batch_did_not_wait_for_goes_on_while_the_caller_trains() -> None:
    async def run() -> tuple[RolloutBatch, RolloutBatch, int]:
        engine = HeldEngine(free=4)
        async with a_manager(engine, over_sampling_factor=2.0) as manager:
            first = await manager.generate_batch()
            engine.gate.set()
            second = await manager.generate_batch()
            return first, second, len(engine.asked)

    first, second, asked = asyncio.run(run())
    assert (first.group_indices, second.group_indices, asked) == ([0, 1, 2, 3], [4, 5, 6, 7], 12)


def test_rewards_are_given_before_the_filter_and_drops_are_counted_by_reason() -> None:
    def reward(sample: Sample) -> float:
        return 0.0 if sample.group_index in (1, 2) else float(sample.index or 0)

    manager = a_manager(answers_at_once, n_samples_per_prompt=2, filter_fn=check_reward_nonzero_std)
    [batch] = asyncio.run(batches_of(manager, 1, reward_fn=reward))
    assert batch.rewards == [0.0, 1.0] * 4
    assert batch.group_indices == [0, 0, 3, 3, 4, 4, 5, 5]
    assert batch.metadata["dropped"] == {"check_reward_nonzero_std (each reward 0)": 2}


async def half(sample: Sample) -> float:
    return 0.5


def test_the_reward_of_a_call_replaces_that_of_the_settings_and_may_be_async() -> None:
    manager = a_manager(answers_at_once, reward_fn=lambda sample: 0.25)
    assert asyncio.run(manager.generate_batch()).rewards == [0.25] * 4
    assert asyncio.run(manager.generate_batch(reward_fn=half)).rewards == [0.5] * 4


def test_without_a_reward_function_metadata_may_say_what_is_correct() -> None:
    def judged(prompts: list[Prompt]) -> list[Sample]:
        answers = [replace(answered(prompt, number), reward=None) for number, prompt in enumerate(prompts)]
        return [replace(answer, metadata={"correct": answer.tokens[-1] == 1}) for answer in answers]

    assert asyncio.run(a_manager(judged).generate_batch()).rewards == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, "1"])
def test_a_reward_that_is_no_number_is_refused_with_the_sample_named_and_nothing_is_lost(reward: Any) -> None:
    manager = a_manager(answers_at_once)
    with pytest.raises(RewardError, match=r"sample 0 of group 2 .*prompt"):
        asyncio.run(manager.generate_batch(reward_fn=lambda sample: reward if sample.group_index == 2 else 1.0))
    assert asyncio.run(manager.generate_batch()).group_indices == [0, 1, 2, 3]


def test_samples_without_reward_and_without_a_reward_function_are_refused() -> None:
    def unscored(prompts: list[Prompt]) -> list[Sample]:
        return [replace(answer, reward=None) for answer in answers_at_once(prompts)]

    manager = a_manager(unscored, filter_fn=check_reward_nonzero_std)
    with pytest.raises(RewardError, match=r"sample 0 of group 0 .*reward_fn"):
        asyncio.run(manager.generate_batch())


@pytest.mark.parametrize("engine", [answers_at_once, ShuffledEngine()])
@pytest.mark.parametrize(("factor", "limit", "judged"), [(1.0, 2, 12), (1.5, 1, 12), (1.5, 0, 6)])
def test_a_filter_that_rejects_everything_ends_with_its_reasons(
    engine: Any, factor: float, limit: int, judged: int
) -> None:
    def never(samples: list[Sample]) -> bool:
        return False

    for accepts in (False, True):
        settings = {"over_sampling_factor": factor, "max_resampling": limit, "accept_short_batch": accepts}
        manager = a_manager(engine, filter_fn=never, **settings)
        with pytest.raises(ConfigurationError, match=rf"0 of the 4 .*dropped {judged} .*never.*max_resampling"):
            asyncio.run(manager.generate_batch())


def test_too_few_groups_are_an_error_or_by_choice_a_short_batch() -> None:
    def third(samples: list[Sample]) -> bool:
        return (samples[0].group_index or 0) % 6 == 0

    manager = a_manager(answers_at_once, max_resampling=1, filter_fn=third)
    with pytest.raises(ConfigurationError, match=r"2 of the 4 .*dropped 6 .*third"):
        asyncio.run(manager.generate_batch())
    manager = a_manager(answers_at_once, max_resampling=1, filter_fn=third, accept_short_batch=True)
    assert asyncio.run(manager.generate_batch()).group_indices == [0, 6]


def test_an_engine_that_fails_in_passing_is_asked_again_for_the_failed_samples_alone() -> None:
    engine = ShuffledEngine(fails=lambda number: number in (1, 5, 8))
    batch = asyncio.run(a_manager(engine, n_samples_per_prompt=2).generate_batch())
    assert len(engine.asked) == 8 + 3
    assert all(list(prompts.values()) == [2] for prompts in groups_of(batch).values())


@pytest.mark.parametrize("is_sync", [True, False])
def test_an_engine_that_keeps_failing_is_an_error_with_its_cause_and_its_prompts_come_again(is_sync: bool) -> None:
    mended = False

    def answers(prompts: list[Prompt]) -> list[Sample]:
        if not mended and "prompt 2" in prompts:
            raise ConnectionError("the server went away")
        return answers_at_once(prompts)

    async def answers_later(prompts: list[Prompt]) -> list[Sample]:
        return answers(prompts)

    manager = a_manager(answers if is_sync else answers_later, num_prompts=4, max_attempts=3)
    with pytest.raises(EngineError, match=r"generate_fn failed 3 times.*prompt.*the server went away") as raised:
        asyncio.run(manager.generate_batch())
    assert isinstance(raised.value.__cause__, ConnectionError)
    mended = True
    assert sorted(groups_of(asyncio.run(manager.generate_batch()))) == [0, 1, 2, 3]


def test_after_an_error_the_next_batch_of_the_same_block_asks_again() -> None:
    async def run() -> RolloutBatch:
        async with a_manager(ShuffledEngine(fails=lambda number: number in (1, 4)), max_attempts=1) as manager:
            for _ in range(2):
                with pytest.raises(EngineError, match="failed 1 times"):
                    await manager.generate_batch()
            batch: RolloutBatch = await manager.generate_batch()
            return batch

    assert sorted(groups_of(asyncio.run(run()))) == [0, 1, 2, 3]


def test_an_engine_that_will_never_answer_again_is_asked_once() -> None:
    calls = []

    def dead(prompts: list[Prompt]) -> list[Sample]:
        calls.append(prompts)
        raise EngineDeadError("the server refuses the key")

    with pytest.raises(EngineDeadError, match="refuses the key"):
        asyncio.run(a_manager(dead).generate_batch())
    assert len(calls) == 1


def test_a_defect_of_the_function_is_raised_as_it_is_at_its_first_call() -> None:
    calls = []

    def defective(prompts: list[Prompt]) -> list[Sample]:
        calls.append(len(prompts))
        return prompts.no_such_name

    with pytest.raises(AttributeError, match="no_such_name"):
        asyncio.run(a_manager(defective).generate_batch())
    assert calls == [4]


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_reward_function_that_fails_is_asked_again_and_never_a_reward_of_zero(is_sync: bool) -> None:
    calls: list[int | None] = []

    def fails(sample: Sample) -> float:
        calls.append(sample.group_index)
        if sample.group_index == 1 and calls.count(1) < 3:
            raise ConnectionError("the verifier went away")
        return 1.0

    async def fails_later(sample: Sample) -> float:
        return fails(sample)

    function = fails if is_sync else fails_later
    assert asyncio.run(a_manager(answers_at_once).generate_batch(function)).rewards == [1.0] * 4
    calls.clear()
    with pytest.raises(RewardError, match=r"reward_fn failed 2 times.*sample 0 of group 1.*verifier went away"):
        asyncio.run(a_manager(answers_at_once, max_attempts=2).generate_batch(function))


async def hangs(_: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("function", ["generate_fn", "reward_fn"])
def test_a_function_that_hangs_is_given_up_after_its_deadline(function: str) -> None:
    given = {"generate_fn": Answering(), function: hangs}
    manager = a_manager(given.pop("generate_fn"), timeout=0.01, max_attempts=2, **given)
    with pytest.raises((EngineError, RewardError), match=rf"{function} failed 2 times.*`timeout`, 0\.01 s"):
        asyncio.run(manager.generate_batch())


async def cancels_itself(_: Any) -> Any:
    raise asyncio.CancelledError


def takes_from_nothing(_: Any) -> Any:
    return next(iter([]))


@pytest.mark.parametrize("raises", [cancels_itself, takes_from_nothing])
@pytest.mark.parametrize("function", ["generate_fn", "reward_fn"])
def test_a_function_that_cancels_itself_or_comes_to_an_iterators_end_has_failed(function: str, raises: Any) -> None:
    """Neither ends the run as Ctrl-C would, nor is asked for ever, nor waited for until its deadline."""
    given = {"generate_fn": answers_at_once, function: raises}
    manager = a_manager(given.pop("generate_fn"), max_attempts=2, **given)
    with pytest.raises((EngineError, RewardError), match=rf"{function} failed 2 times.*(cancelled|StopIteration)"):
        asyncio.run(asyncio.wait_for(manager.generate_batch(), 60))


def test_a_sync_function_that_hangs_is_given_up_and_never_called_beside_itself() -> None:
    goes_on, calls = threading.Event(), []

    def waits(prompts: list[Prompt]) -> list[Sample]:
        calls.append(len(prompts))
        assert goes_on.wait(30)
        return answers_at_once(prompts)

    manager = a_manager(waits, timeout=0.01, max_attempts=2)
    with pytest.raises(EngineError, match=r"generate_fn failed 2 times.*`timeout`"):
        asyncio.run(manager.generate_batch())
    assert calls in ([], [4]), "if it was called, it still runs"
    goes_on.set()


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        (None, "NoneType.*list of samples"),
        (["4", "5", "6", "7"], "list.*list of samples"),
        ([], "0 samples for 4 prompts"),
        ([answered(f"prompt {number}") for number in range(5)], "5 samples for 4 prompts"),
        ([answered("another prompt")] * 4, "sample 0 of group 0.*as it was given"),
    ],
)
def test_answers_that_do_not_fit_the_prompts_are_refused_at_once(answers: Any, named: str) -> None:
    calls = []

    def answering(prompts: list[Prompt]) -> Any:
        calls.append(prompts)
        return answers

    with pytest.raises(ConfigurationError, match=f"generate_fn.*{named}"):
        asyncio.run(a_manager(answering).generate_batch())
    assert len(calls) == 1


def test_a_sample_that_contradicts_itself_is_refused_at_once() -> None:
    def contradicting(prompts: list[Prompt]) -> list[Sample]:
        return [Sample(prompt, tokens=[1, 2], loss_mask=[1]) for prompt in prompts]

    with pytest.raises(BadMessageError, match=r"loss_mask.*1 values for 2 tokens"):
        asyncio.run(a_manager(contradicting).generate_batch())


def test_an_answer_that_met_a_limit_is_an_answer() -> None:
    def truncated(prompts: list[Prompt]) -> list[Sample]:
        return [answered(prompt, status=SampleStatus.TRUNCATED) for prompt in prompts]

    assert asyncio.run(a_manager(truncated).generate_batch()).metadata["statuses"] == ["truncated"] * 4
