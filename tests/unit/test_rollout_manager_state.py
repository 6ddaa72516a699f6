"""Nothing is lost and nothing doubled when a rollout manager is left, cancelled, killed or restored."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollstream.schemas.errors import BadMessageError, ConfigurationError, EngineError
from rollstream.training.datasets import DataBuffer
from rollstream.training.rollout_gen import AsyncRolloutManager
from rollstream.training.types import RolloutBatch, Sample, SampleStatus
from tests.harness.rollout_functions import HeldEngine, ShuffledEngine, a_manager, answered, groups_of


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def restored(manager: AsyncRolloutManager, generate_fn: Any, **changes: Any) -> AsyncRolloutManager:
    """Another manager, as another process would make it from a file."""
    config = replace(manager.config, generate_fn=generate_fn, **changes)
    other = AsyncRolloutManager(DataBuffer(manager.buffer.prompts), config)
    other.load_state_dict(json.loads(json.dumps(manager.state_dict())))
    return other


async def begun_and_left(manager: AsyncRolloutManager, after: int) -> None:
    """Enters the manager, begins a batch, and leaves with it unfinished after so many turns of the loop."""
    async with manager:
        batch = asyncio.create_task(manager.generate_batch())
        await turns(after)
    await asyncio.wait([batch], timeout=30)
    assert batch.cancelled()


def test_leaving_keeps_finished_groups_and_asks_for_the_others_again() -> None:
    first, second = HeldEngine(free=5), HeldEngine(free=100)
    manager = a_manager(first, n_samples_per_prompt=2)
    asyncio.run(begun_and_left(manager, after=10))
    statuses = [[sample["status"] for sample in group] for group in manager.state_dict()["groups"]]
    assert statuses == [["completed"] * 2] * 2 + [["completed", "aborted"], ["aborted"] * 2]
    batch = asyncio.run(restored(manager, second).generate_batch())
    assert groups_of(batch) == {group: Counter({prompt: 2}) for group, prompt in enumerate(first.asked[::2])}
    assert second.asked == [first.asked[5], first.asked[6], first.asked[7]], "only what is unfinished"


def test_a_sample_that_was_stopped_keeps_its_tokens_and_goes_on_from_them() -> None:
    resumed: list[Sample] = []

    async def resume(samples: list[Sample]) -> list[Sample]:
        resumed.extend(samples)
        ended = [replace(one, tokens=[*one.tokens, 9], loss_mask=[*one.loss_mask, 1]) for one in samples]
        return [replace(one, status=SampleStatus.COMPLETED) for one in ended]

    manager = a_manager(HeldEngine(free=3))
    asyncio.run(begun_and_left(manager, after=10))
    other = restored(manager, HeldEngine(free=100), resume_fn=resume)
    batch = asyncio.run(other.generate_batch())
    asyncio.run(other.generate_batch())
    assert [(one.group_index, one.status, one.tokens) for one in resumed] == [(3, SampleStatus.ABORTED, [1, 2])]
    assert batch.tokens[3] == [1, 2, 9]


def test_an_answer_that_its_engine_stopped_is_asked_again_and_never_trained() -> None:
    calls: Counter[Any] = Counter()

    async def stops_once(prompts: list[Any]) -> list[Sample]:
        calls.update(prompts)
        first = calls[prompts[0]] == 1
        return [answered(prompts[0], status=SampleStatus.ABORTED if first else SampleStatus.COMPLETED)]

    assert asyncio.run(a_manager(stops_once).generate_batch()).metadata["statuses"] == ["completed"] * 4
    assert set(calls.values()) == {2}


def test_only_what_was_stopped_is_asked_again_and_not_for_ever() -> None:
    calls: list[list[Any]] = []

    def stops_the_last(prompts: list[Any]) -> list[Sample]:
        calls.append(prompts)
        return [*map(answered, prompts[:-1]), answered(prompts[-1], status=SampleStatus.ABORTED)]

    with pytest.raises(EngineError, match=r"generate_fn failed 3 times.*1 of 1 answers.*group 3.*aborted"):
        asyncio.run(a_manager(stops_the_last, max_attempts=3).generate_batch())
    assert [len(prompts) for prompts in calls] == [4, 1, 1]


def test_calls_that_had_not_begun_when_the_manager_was_left_are_made_by_the_next_batch() -> None:
    engine = HeldEngine(free=100)
    manager = a_manager(engine)
    asyncio.run(begun_and_left(manager, after=1))
    assert engine.asked == []
    assert asyncio.run(manager.generate_batch()).group_indices == [0, 1, 2, 3]


def test_cancelling_a_batch_leaves_the_others_running_and_loses_nothing() -> None:
    async def run() -> tuple[RolloutBatch, HeldEngine]:
        engine = HeldEngine(free=2)
        async with a_manager(engine) as manager:
            batch = asyncio.create_task(manager.generate_batch())
            await turns(10)
            batch.cancel()
            await asyncio.wait([batch], timeout=30)
            assert batch.cancelled()
            engine.gate.set()
            return await manager.generate_batch(), engine

    batch, engine = asyncio.run(run())
    assert (batch.group_indices, len(engine.asked)) == ([0, 1, 2, 3], 4)


def test_an_error_in_the_block_leaves_it_as_it_is() -> None:
    manager = a_manager(HeldEngine(free=2))

    async def run() -> None:
        async with manager:
            manager_task = asyncio.create_task(manager.generate_batch())
            await turns(10)
            assert not manager_task.done()
            raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        asyncio.run(run())
    statuses = Counter(group[0]["status"] for group in manager.state_dict()["groups"])
    assert statuses == {"completed": 2, "aborted": 2}


def test_ctrl_c_ends_a_process_whose_function_hangs_and_what_is_finished_is_kept() -> None:
    script = (
        "import asyncio, json, os, signal, threading\n"
        "from tests.harness.rollout_functions import a_manager, answered\n"
        "def answers(prompts):\n"
        "    if len(prompts) > 4: return [answered(prompt) for prompt in prompts]\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    threading.Event().wait()\n"
        "manager = a_manager(answers, over_sampling_factor=1.5)\n"
        "async def train():\n"
        "    async with manager:\n"
        "        while True: await manager.generate_batch()\n"
        "try: asyncio.run(train())\n"
        "except KeyboardInterrupt: print(json.dumps(manager.state_dict()))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    statuses = Counter(group[0]["status"] for group in json.loads(done.stdout)["groups"])
    assert statuses == {"completed": 2, "pending": 4}


def test_a_manager_may_be_entered_within_itself_and_again_in_another_loop() -> None:
    engine = ShuffledEngine()
    manager = a_manager(engine, over_sampling_factor=2.0)

    async def run() -> RolloutBatch:
        async with manager:
            async with manager:
                await manager.generate_batch()
            return await manager.generate_batch()

    batches = [asyncio.run(run()), asyncio.run(run())]
    assert len(groups_of(*batches)) == 8


def test_two_batches_at_a_time_share_no_group() -> None:
    async def run() -> list[RolloutBatch]:
        async with a_manager(ShuffledEngine(), over_sampling_factor=1.5) as manager:
            return list(await asyncio.gather(*(manager.generate_batch() for _ in range(3))))

    assert len(groups_of(*asyncio.run(run()))) == 12


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    stops=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    size=st.integers(1, 3),
    factor=st.sampled_from([1.0, 1.5, 2.0]),
)
def test_however_often_it_is_stopped_each_prompt_is_returned_once_an_epoch(
    seed: int, stops: list[int], size: int, factor: float
) -> None:
    """Each stop is a kill: what was returned by then is trained, and the state of that moment is all that is left."""
    manager = a_manager(ShuffledEngine(seed), 12, n_samples_per_prompt=size, over_sampling_factor=factor)
    returned: list[RolloutBatch] = []

    async def run(after: int | None) -> None:
        async def train() -> None:
            while sum(len(batch.tokens) for batch in returned) < 24 * size:
                returned.append(await manager.generate_batch())

        async with manager:
            training = asyncio.create_task(train())
            await (turns(after) if after is not None else asyncio.wait([training], timeout=60))
            training.cancel()

    for number, after in enumerate(stops):
        asyncio.run(run(after))
        manager = restored(manager, ShuffledEngine(seed + number + 1))
    asyncio.run(run(None))
    groups = groups_of(*returned)
    assert all(list(prompts.values()) == [size] for prompts in groups.values())
    assert len(groups) * size == sum(len(batch.tokens) for batch in returned), "no group came twice"
    kept = [sample for group in manager.state_dict()["groups"] for sample in group]
    prompts = {index: next(iter(found)) for index, found in groups.items()}
    prompts |= {sample["group_index"]: sample["prompt"] for sample in kept}
    assert sorted(prompts) == list(range(manager.buffer.position)), "every prompt was returned, or is still there"
    for epoch in range(manager.buffer.position // 12):
        assert len({prompts[index] for index in range(epoch * 12, epoch * 12 + 12)}) == 12


def a_state(**changes: Any) -> dict[str, Any]:
    """A good state of two finished groups of two samples, the last of which is changed."""
    groups = [
        [replace(answered(f"prompt {group}"), group_index=group, index=index).to_dict() for index in range(2)]
        for group in range(2)
    ]
    groups[-1][-1] |= changes
    return {"buffer": {"epoch_id": 0, "sample_offset": 2, "seed": 7}, "groups": groups}


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"buffer": {}, "groups": []},
        a_state() | {"groups": {}},
        a_state() | {"more": 1},
        a_state() | {"groups": [None]},
        a_state() | {"groups": [[]]},
        a_state() | {"groups": a_state()["groups"] * 2},
        a_state() | {"buffer": {"epoch_id": 0, "sample_offset": 1, "seed": 7}},
        a_state() | {"buffer": {"epoch_id": 0, "sample_offset": 101, "seed": 7}},
        a_state(index=0),
        a_state(group_index=0),
        a_state(group_index=None),
        a_state(group_index="1"),
        a_state(prompt="prompt 0"),
        a_state(prompt=["prompt 1"]),
        a_state() | {"groups": [[one | {"prompt": "a stranger's"} for one in a_state()["groups"][0]]]},
        a_state(status="done"),
        a_state(loss_mask=[1]),
        a_state(colour="red"),
        {"buffer": a_state()["buffer"], "groups": [group[:1] for group in a_state()["groups"]]},
    ],
)
def test_the_state_of_a_stranger_is_refused_and_changes_nothing(state: Any) -> None:
    manager = a_manager(HeldEngine(free=5), n_samples_per_prompt=2)
    manager.load_state_dict(a_state())
    before = manager.state_dict()
    with pytest.raises(BadMessageError):
        manager.load_state_dict(state)
    assert manager.state_dict() == before


def test_a_state_is_not_loaded_beside_running_calls() -> None:
    async def run() -> None:
        async with a_manager(HeldEngine()) as manager:
            batch = asyncio.create_task(manager.generate_batch())
            await turns(10)
            with pytest.raises(ConfigurationError, match=r"load_state_dict.*before"):
                manager.load_state_dict(a_state())
            batch.cancel()

    asyncio.run(run())
